"""The supervisor's side of the preloaded process (`roles.preloaded`), from which roles with torch are forked.

Importing torch and transformers takes each such process about five seconds of CPU, and a run on one machine has five
of them. Forked processes share the imports and most of their memory. Imports don't touch a GPU, so a forked process
can still choose its own. This is only an optimization: a role that can't be forked is started as a command.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from rollart_hpc.backends.declaration import Backend
from rollart_hpc.backends.registry import find
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.launch.command import environment, python
from rollart_hpc.launch.process import open_log
from rollart_hpc.processes.forking import Fork, Forked, Reap, Reaped, read_answer, write
from rollart_hpc.processes.lifetime import PARENT_VARIABLE
from rollart_hpc.types import Role


class NotPreloaded(Exception):
    """The preloaded process is gone; its log says why."""


def preloaded_roles(config: RunConfig) -> frozenset[Role]:
    """The roles to fork; none if no forkable backend has slow imports."""
    backends = [backend for backend in _backends(config) if backend.is_forkable]
    if not any(backend.imports for backend in backends):
        return frozenset()  # not worth it for the relays alone
    return frozenset({"relay", *(backend.role for backend in backends)})


def preloaded_kinds(config: RunConfig, roles: Container[str] = ("engine", "trainer", "base_model")) -> tuple[str, ...]:
    """What the preloaded process imports, if it forks `roles`: see `roles.imports`."""
    forkable = (backend for backend in _backends(config) if backend.is_forkable and backend.role in roles)
    return ("relay", *(["base_model"] if "base_model" in roles else []), *(f"{b.role}.{b.kind}" for b in forkable))


def _backends(config: RunConfig) -> tuple[Backend, Backend]:
    return find("engine", config.engine.kind), find("trainer", config.trainer.kind)


class Preloaded:
    def __init__(self, log: Path, kinds: tuple[str, ...]) -> None:
        """Starts importing for `kinds` at once; the first order waits until the imports are done."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._variables = environment()
        output = open_log(log)
        try:
            self._popen = subprocess.Popen(
                python("-m", "rollart_hpc.roles.preloaded", str(theirs.fileno()), *kinds),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._variables | {PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        finally:
            os.close(output)
            theirs.close()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def fork(
        self, module: str, arguments: list[str], variables: dict[str, str], stdout: int, stderr: int
    ) -> ForkedProcess:
        changed = {key: value for key, value in variables.items() if self._variables.get(key) != value}
        answer = self._ask(Fork(module, arguments, changed), [stdout, stderr])
        assert isinstance(answer, Forked)
        return ForkedProcess(answer.pid, self)

    def reap(self, pid: int) -> int:
        try:
            answer = self._ask(Reap(pid))
        except NotPreloaded:
            return -signal.SIGKILL  # the kernel killed it when the preloaded process died
        assert isinstance(answer, Reaped)
        return answer.code

    def _ask(self, order: Fork | Reap, descriptors: list[int] | None = None) -> Forked | Reaped:
        try:
            socket.send_fds(self._control, [write(order)], descriptors or [])
            data = self._control.recv(1024)
        except OSError as error:
            raise NotPreloaded(str(error)) from None
        if not data:
            raise NotPreloaded("the preloaded process has ended")
        return read_answer.decode(data)

    def close(self) -> None:
        """Ends the preloaded process and all remaining children."""
        self._control.close()
        self._popen.kill()
        self._popen.wait()


@dataclass(frozen=True)
class ForkedProcess:
    """The part of `subprocess.Popen` that is used here. Call `wait` only once."""

    pid: int
    server: Preloaded

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        return self.server.reap(self.pid)
