"""A process on the node of an agent, as the supervisor sees it. Owns its exit code and how it is waited for."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from rollart_hpc.launch.process import Child, Order
from rollart_hpc.wire.messages import EndProcess, Message, Signalled
from rollart_hpc.wire.wakeup import Wakeup

Tell = Callable[[Message], None]  # sends a message to the agent


class RemoteChild(Child):
    """Created by the supervisor's thread; `launched` and `ended` are called by the one that serves the agents."""

    def __init__(self, order: Order, host: str, tell: Tell, forget: Callable[[RemoteChild], None]) -> None:
        """`forget` is called once, when nobody waits for it any longer."""
        self.order, self.started_s, self.is_orphan, self.reason = order, time.monotonic(), False, ""
        self._host, self._tell, self._forget = host, tell, forget
        self._pid = 0
        self._code: int | None = None
        self._is_over = Wakeup()

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def host(self) -> str:
        return self._host

    def launched(self, pid: int) -> None:
        self._pid = pid

    def ended(self, code: int, reason: str = "", *, is_orphan: bool = False) -> None:
        if self._code is None:
            self._code, self.reason, self.is_orphan = code, reason, is_orphan
            self._is_over.set()

    def fileno(self) -> int:
        return self._is_over.fd

    def signal(self, number: int) -> None:
        self._tell(Signalled(self.name, self.order.incarnation, number))

    def end(self, grace_s: float, term_s: float) -> None:
        """Ask the agent to end it."""
        self._tell(EndProcess(self.name, self.order.incarnation, grace_s, term_s))

    def kill_group(self) -> None:
        self.end(0.0, 0.0)

    def reap(self, timeout_s: float = 30.0) -> int:
        """An agent that does not answer in time is as good as lost: the process ends with it."""
        if self._code is None:
            self.kill_group()
            self._is_over.wait(timeout_s)
        code = -signal.SIGKILL if self._code is None else self._code
        self._forget(self)
        self._is_over.close()
        return code
