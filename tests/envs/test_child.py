"""The process of an environment, in this one."""

from __future__ import annotations

import socket

import pytest

from rollart_hpc.config.schema import Trouble
from rollart_hpc.envs import child, talk
from rollart_hpc.envs.contract import Turn

closed: list[bool] = []


class Reluctant:
    def reset(self, seed: int) -> str:
        return "hello"

    def step(self, response: str) -> Turn:
        raise ConnectionResetError("of a service that this environment asks")

    def outcome(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        closed.append(True)


@pytest.fixture
def ends() -> tuple[socket.socket, socket.socket]:
    closed.clear()
    worker, environment = socket.socketpair()
    worker.sendall(talk.pack(talk.Setup(f"{__name__}:Reluctant", {}, Trouble())))
    worker.sendall(talk.pack(talk.Reset(0, 0)))
    return worker, environment


def test_a_worker_that_leaves_before_the_answer_is_no_failure(ends: tuple[socket.socket, socket.socket]) -> None:
    worker, environment = ends
    worker.close()
    child.serve(environment)
    assert closed == [True]


def test_what_an_environment_raises_is_an_answer_whatever_it_is(ends: tuple[socket.socket, socket.socket]) -> None:
    worker, environment = ends
    worker.sendall(talk.pack(talk.Step("go on")))
    worker.shutdown(socket.SHUT_WR)
    child.serve(environment)
    environment.close()
    with worker:
        said = b"".join(iter(lambda: worker.recv(65536), b""))
    assert b"hello" in said and b"ConnectionResetError: of a service" in said
    assert __file__.encode() in said, "its traceback"
    assert closed == [True]
