"""Many environments that are wanted at once: worker and fork server never wait for each other."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.envs.hosting import Driver, make_task

SLOTS = 60


def test_the_fork_server_reads_orders_while_nobody_reads_its_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of them fill a socket of the usual size; here it is small."""
    make_pair = socket.socketpair

    def small(*kind: Any) -> tuple[socket.socket, socket.socket]:
        pair = make_pair(*kind)
        for end in pair if socket.SOCK_SEQPACKET in kind else ():
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's minimum: a few messages
        return pair

    monkeypatch.setattr(socket, "socketpair", small)
    driver = Driver(SLOTS, odd=make_task())
    try:
        for slot in range(SLOTS):
            driver.host.reset(slot, "odd", slot)
        assert {driver.next(slot).kind for slot in range(SLOTS)} == {"turn"}
    finally:
        driver.host.close()
