"""The interface for messages and progress shown to the user. The command line and jobs implement it."""

from __future__ import annotations

from typing import Protocol

from rollart_hpc.observe.status import Status


class Screen(Protocol):
    def say(self, text: str) -> None: ...
    def show(self, status: Status) -> None: ...
