"""The supervisor's line to the controller: the pipe on which a new controller says its address, then the link.

Owns both descriptors in the supervisor's selector. Sends and receives; decides nothing.
"""

from __future__ import annotations

import json
import os
import selectors
from collections.abc import Callable
from contextlib import suppress

from rollart_hpc import __version__
from rollart_hpc.launch.process import new_incarnation
from rollart_hpc.rundir import RunDir
from rollart_hpc.wire.keys import load_client
from rollart_hpc.wire.link import Link
from rollart_hpc.wire.messages import Hello, Message

WELCOME_S = 20.0  # timeout for the controller's answer to the supervisor


class ControllerLine:
    def __init__(
        self,
        run: RunDir,
        node: str,
        selector: selectors.BaseSelector,
        on_address: Callable[[str], None],
        on_message: Callable[[], None],
    ) -> None:
        """`on_address`: a controller listens there; empty if it died before. `on_message`: call `received`."""
        self._run, self._node, self._selector = run, node, selector
        self._on_address, self._on_message = on_address, on_message
        self._ready: int | None = None  # the pipe on which the controller writes its address
        self._link: Link | None = None

    @property
    def is_open(self) -> bool:
        return self._link is not None

    def expect(self, start: Callable[[int], None]) -> None:
        """`start` starts a controller, which writes its address to this descriptor."""
        self._ready, write = os.pipe()
        try:
            start(write)
        finally:
            os.close(write)
        self._selector.register(self._ready, selectors.EVENT_READ, self._addressed)

    def _addressed(self) -> None:
        assert self._ready is not None
        line = os.read(self._ready, 4096)
        self._close_ready()
        self._on_address(str(json.loads(line)["address"]) if line else "")

    def connect(self, address: str, attempt: int) -> None:
        """Raises if the controller does not answer."""
        hello = Hello(
            "supervisor", "supervisor", self._node, "", 0, __version__, attempt, new_incarnation(), os.getpid()
        )
        keys = load_client(self._run.keys(attempt), "supervisor")
        self._link = Link(address, keys, hello, welcome_timeout_s=WELCOME_S)
        self._selector.register(self._link, selectors.EVENT_READ, self._on_message)

    def tell(self, message: Message) -> None:
        """Nothing if there is no controller."""
        if self._link is not None:
            self._link.send(message)

    def received(self) -> Message | None:
        """The next message that is there. Raises `wire.link.LinkClosed` if the controller is gone."""
        assert self._link is not None
        received = self._link.recv(0)
        return received[0] if received is not None else None

    def close(self, reason: str) -> None:
        """May be called at any time."""
        self._close_link(reason)
        self._close_ready()

    def _close_ready(self) -> None:
        if self._ready is not None:
            with suppress(KeyError):  # the controller could not be started
                self._selector.unregister(self._ready)
            os.close(self._ready)
            self._ready = None

    def _close_link(self, reason: str) -> None:
        if self._link is not None:
            self._selector.unregister(self._link)
            self._link.close(reason)
            self._link = None
