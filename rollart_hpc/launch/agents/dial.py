"""How an agent finds its supervisor, and the next one after that has ended. Owns the waiting; obeys nobody."""

from __future__ import annotations

import os
import time

from rollart_hpc import __version__
from rollart_hpc.errors import SiteError
from rollart_hpc.launch.agents.address import Address, read_address
from rollart_hpc.launch.process import new_incarnation
from rollart_hpc.rundir import RunDir
from rollart_hpc.wire.keys import load_client
from rollart_hpc.wire.link import Link
from rollart_hpc.wire.messages import Hello

ONLY_TRY_S = 600.0  # for an answer, by an agent that does not wait: hundreds of nodes may dial at once
TRY_S = 10.0  # by one that does: the address may be that of a supervisor which was killed
LOOK_EVERY_S = 1.0


class Dialer:
    def __init__(self, run: RunDir, name: str, host: str, wait_s: float) -> None:
        """`wait_s`: how long a supervisor is waited for; 0 = one that does not answer is an error at once."""
        self.wait_s = wait_s
        self._run, self._name, self._host = run, name, host
        self._epoch = 0  # of the supervisor that answered last
        self._has_ended = False  # that one said so

    def dial(self) -> Link | None:
        """A link to the supervisor; None: the run is over."""
        deadline_s = time.monotonic() + self.wait_s
        error = SiteError(f"{self._run.path} has no supervisor for agents", "start the run first")
        while True:
            found = read_address(self._run)
            if found is not None and self.wait_s and found.is_over:
                return None
            if found is not None and not (self._has_ended and found.epoch <= self._epoch):
                try:
                    return self._connect(found)
                except SiteError as problem:  # also LinkClosed
                    error = problem
            if time.monotonic() >= deadline_s:
                raise error
            time.sleep(LOOK_EVERY_S)

    def _connect(self, found: Address) -> Link:
        hello = Hello(
            "agent", self._name, self._host, "", 0, __version__, found.epoch, new_incarnation(), os.getpid()
        )  # fmt: skip
        keys = load_client(self._run.agent_keys(found.epoch), "agent")
        link = Link(found.address, keys, hello, welcome_timeout_s=TRY_S if self.wait_s else ONLY_TRY_S)
        self._epoch, self._has_ended = found.epoch, False
        return link

    def ended(self) -> None:
        """The supervisor said that it ends: only a newer one is dialled from now on."""
        self._has_ended = True

    def is_outdated(self) -> bool:
        """Has another supervisor taken over from the one that answered last?"""
        found = read_address(self._run)
        return found is not None and found.epoch > self._epoch
