"""Where an environment lives, as the host sees it. Owns the two interfaces between `host` and its kinds of places."""

from __future__ import annotations

from typing import Protocol

from rollart_hpc.envs import talk


class Place(Protocol):
    """One environment, in a process or in the worker. `task` is what it plays."""

    task: str

    def ask(self, request: talk.Request) -> None:
        """Returns at once; the answer reaches `Listener.answered`."""


class Listener(Protocol):
    def answered(self, place: Place, answer: talk.Answer) -> None: ...

    def died(self, place: Place, detail: str) -> None:
        """It will never answer again. Not called for what the host itself removed."""


class Places(Protocol):
    def take(self, task: str) -> Place:
        """An idle one of this task, or a new one."""

    def give_back(self, place: Place) -> None:
        """It is idle and well: keep it for the next trajectory of its task."""

    def remove(self, place: Place) -> None:
        """At once, whatever it is doing."""

    def close(self) -> None: ...
