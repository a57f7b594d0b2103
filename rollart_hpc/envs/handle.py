"""Environments as the host sees them. Owns the interfaces between `host` and the backends that run environments."""

from __future__ import annotations

from typing import Protocol

from rollart_hpc.envs import talk


class EnvHandle(Protocol):
    """One environment of task `task`, in its own process or in the worker."""

    task: str

    def ask(self, request: talk.Request) -> None:
        """Returns immediately; `Listener.answered` gets the answer."""


class Listener(Protocol):
    def answered(self, handle: EnvHandle, answer: talk.Answer) -> None: ...

    def died(self, handle: EnvHandle, detail: str) -> None:
        """It will never answer again. Not called for environments that the host removed."""


class EnvBackend(Protocol):
    def take(self, task: str) -> EnvHandle:
        """An idle environment of this task, or a new one."""

    def give_back(self, handle: EnvHandle) -> None:
        """The environment is idle and healthy: keep it for the next trajectory of its task."""

    def remove(self, handle: EnvHandle) -> None:
        """Remove it immediately, even if it is busy."""

    def close(self) -> None: ...
