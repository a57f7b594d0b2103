"""Runs inside an environment's process. Owns the environment object; knows no worker, no keys, no run.

Threads of the worker also use `Player`, for `isolation: shared`.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import socket
import sys
import traceback
from typing import TYPE_CHECKING, Any

import msgspec

from rollart_hpc.config.objects import resolve
from rollart_hpc.envs import talk
from rollart_hpc.envs.trouble import Troubled, is_quiet
from rollart_hpc.errors import DETAIL_CHARS

if TYPE_CHECKING:
    from rollart_hpc.envs.contract import Environment

TRACE_CHARS = 8000  # longer tracebacks keep only their end


class Player:
    """One environment object, used for one trajectory after another. Its exceptions become answers."""

    def __init__(self, setup: talk.Setup) -> None:
        self._setup = setup
        self._environment: Environment | None = None

    def do(self, request: talk.Request) -> talk.Answer:
        try:
            if isinstance(request, talk.Reset):
                return self._reset(request)
            assert self._environment is not None, "a turn was requested before the first reset"
            if isinstance(request, talk.Step):
                turn = self._environment.step(request.response)
                done = bool(turn.done)
                outcome = self._environment.outcome() if done else None
                return _checked(turn.observation, done, outcome)
            return _checked("", True, self._environment.outcome())
        except (Exception, SystemExit) as error:  # foreign code: a failed trajectory is data
            detail = f"{type(error).__name__}: {error}"[:DETAIL_CHARS]
            return talk.Raised(detail, traceback.format_exc()[-TRACE_CHARS:])

    def _reset(self, request: talk.Reset) -> talk.Answer:
        if self._environment is None:
            environment: Environment = resolve(self._setup.environment)(**self._setup.params)
            trouble = self._setup.trouble
            self._environment = environment if is_quiet(trouble) else Troubled(environment, trouble)
        if isinstance(self._environment, Troubled):
            self._environment.arm(request.trouble_seed)
        return _checked(self._environment.reset(request.seed), False, None)

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()


def _checked(observation: Any, done: bool, outcome: Any) -> talk.Observed:
    """Check types here, where the error message can name the environment's mistake to its author."""
    if not isinstance(observation, str):
        raise TypeError(f"the observation is a {type(observation).__name__}, expected str")
    if outcome is not None and not isinstance(outcome, dict):
        raise TypeError(f"the outcome is a {type(outcome).__name__}, expected dict")
    return talk.Observed(observation, done, None if outcome is None else talk.plain(outcome))


def serve(channel: socket.socket) -> None:
    """Answer requests until the worker closes its end. If that happens during a request, it was cancelled."""
    _own_randomness()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # its process ends without a flush
    unpacker = talk.Unpacker()
    player: Player | None = None
    with contextlib.suppress(ConnectionError):
        while data := channel.recv(65536):
            for body in unpacker.feed(data):
                request = talk.read_request(body)
                if isinstance(request, talk.Setup):
                    player = Player(request)
                    continue
                assert player is not None
                channel.sendall(_packed(player.do(request)))
    if player is not None:
        player.close()


def _packed(answer: talk.Answer) -> bytes:
    try:
        return talk.pack(answer)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        return talk.pack(talk.Raised(f"the answer can't be sent: {error}"[:DETAIL_CHARS]))


def _own_randomness() -> None:
    """Seed the global random state, which forked siblings would otherwise share."""
    random.seed(os.urandom(16))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(os.urandom(4), "big"))
