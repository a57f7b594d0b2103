"""What whoever starts or follows a run tells the user. Owns that contract; the command line and jobs fill it in."""

from __future__ import annotations

from typing import Protocol

from rollart_hpc.observe.status import Status


class Screen(Protocol):
    def say(self, text: str) -> None: ...
    def show(self, status: Status) -> None: ...
