"""Environments as the host sees them. Owns the interfaces between `host` and what runs environments."""

from __future__ import annotations

from typing import Protocol

from rollart_hpc.envs import talk


class EnvHandle(Protocol):
    """One environment, in a process or in the worker. `task` is what it plays."""

    task: str

    def ask(self, request: talk.Request) -> None:
        """Returns at once; the answer reaches `Listener.answered`."""


class Listener(Protocol):
    def answered(self, handle: EnvHandle, answer: talk.Answer) -> None: ...

    def died(self, handle: EnvHandle, detail: str) -> None:
        """It will never answer again. Not called for what the host itself removed."""


class EnvBackend(Protocol):
    def take(self, task: str) -> EnvHandle:
        """An idle one of this task, or a new one."""

    def give_back(self, handle: EnvHandle) -> None:
        """It is idle and well: keep it for the next trajectory of its task."""

    def remove(self, handle: EnvHandle) -> None:
        """At once, whatever it is doing."""

    def close(self) -> None: ...
