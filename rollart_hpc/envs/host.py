"""All environments of one env worker. Owns their assignment to slots and all deadlines; renders and sends nothing.

    host.reset(slot, task, seed)  ->  Happened(slot, "turn", observation)
    host.step(slot, response)     ->  Happened(slot, "turn", observation, done, outcome)
    host.finish(slot)             ->  Happened(slot, "turn", done=True, outcome)       a trajectory cut short
    host.release(slot)                                          clean end or cancelled: idle -> reused, busy -> killed
    any failure                   ->  Happened(slot, "failed", status, detail)          the slot is free again

Calls return immediately. The caller waits in its selector for at most `wait_s()`, calls the callback of every ready
key, then `collect()`. A slot is any hashable object; it has at most one call in progress.
"""

from __future__ import annotations

import heapq
import selectors
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollart_hpc.config.schema import TaskConfig
from rollart_hpc.envs import talk
from rollart_hpc.envs.handle import EnvBackend, EnvHandle
from rollart_hpc.envs.processes import Processes
from rollart_hpc.envs.threads import Threads
from rollart_hpc.vocabulary import DONE, DropReason


@dataclass(frozen=True, slots=True)
class Happened:
    slot: Hashable
    kind: Literal["turn", "failed"]
    observation: str = ""
    done: bool = False
    outcome: dict[str, Any] | None = None
    status: str = DONE  # or a DropReason
    detail: str = ""
    trace: str = ""  # traceback of the exception
    seconds: float = 0.0


@dataclass(slots=True)
class Lease:
    """The environment that a slot uses."""

    slot: Hashable
    task: str
    handle: EnvHandle
    call: talk.Request | None = None  # in progress
    called_s: float = 0.0
    number: int = 0  # of the call
    death: str = ""  # how it died, if it died while idle


def _setups(tasks: Mapping[str, TaskConfig], isolation: str) -> dict[str, talk.Setup]:
    return {
        name: talk.Setup(task.environment, dict(task.params), task.trouble)
        for name, task in tasks.items()
        if task.isolation == isolation
    }


class Host:
    def __init__(
        self,
        selector: selectors.BaseSelector,
        tasks: Mapping[str, TaskConfig],
        slots: int,
        variables: Sequence[str] = (),
    ) -> None:
        self._tasks = tasks
        self.processes = Processes(selector, self, _setups(tasks, "process"), slots, variables)
        self._threads = Threads(selector, self, _setups(tasks, "shared"))
        self._leases: dict[Hashable, Lease] = {}
        self._by_handle: dict[int, Lease] = {}
        self._deadlines: list[tuple[float, int, Hashable]] = []  # when, number of the call, slot
        self._num_calls = 0
        self._happened: list[Happened] = []

    def start(self) -> None:
        """Import the tasks' environments once, for all processes. Blocks until that is done."""
        if any(task.isolation == "process" for task in self._tasks.values()):
            self.processes.start()

    # --- calls -----------------------------------------------------------------------------------

    def reset(self, slot: Hashable, task: str, seed: int, trouble_seed: int = 0) -> None:
        assert slot not in self._leases, f"slot {slot!r} is in use"
        handle = self._backend(task).take(task)
        self._leases[slot] = self._by_handle[id(handle)] = Lease(slot, task, handle)
        self._call(slot, talk.Reset(seed, trouble_seed), self._tasks[task].reset_timeout_s)

    def step(self, slot: Hashable, response: str) -> None:
        self._call(slot, talk.Step(response), self._tasks[self._leases[slot].task].turn_timeout_s)

    def finish(self, slot: Hashable) -> None:
        self._call(slot, talk.Finish(), self._tasks[self._leases[slot].task].turn_timeout_s)

    def release(self, slot: Hashable) -> None:
        lease = self._leases.get(slot)
        if lease is not None:
            self._end(lease, reusable=lease.call is None)

    def _call(self, slot: Hashable, request: talk.Request, timeout_s: float) -> None:
        lease = self._leases[slot]
        assert lease.call is None, f"slot {slot!r} is busy"
        self._num_calls += 1
        lease.call, lease.called_s, lease.number = request, time.monotonic(), self._num_calls
        if lease.death:
            self._fail(lease, DropReason.ENV_CRASHED, lease.death)
            return
        heapq.heappush(self._deadlines, (lease.called_s + timeout_s, lease.number, slot))
        lease.handle.ask(request)

    # --- results -----------------------------------------------------------------------------------

    def wait_s(self) -> float | None:
        """How long the caller may sleep; None: forever."""
        if self._happened:
            return 0.0
        while self._deadlines and not self._is_current(self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return max(0.0, self._deadlines[0][0] - time.monotonic()) if self._deadlines else None

    def collect(self) -> list[Happened]:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            entry = heapq.heappop(self._deadlines)
            if self._is_current(entry):
                self._expire(self._leases[entry[2]])
        happened, self._happened = self._happened, []
        return happened

    def _is_current(self, entry: tuple[float, int, Hashable]) -> bool:
        lease = self._leases.get(entry[2])
        return lease is not None and lease.call is not None and lease.number == entry[1]

    def _expire(self, lease: Lease) -> None:
        task = self._tasks[lease.task]
        if isinstance(lease.call, talk.Reset):
            self._fail(lease, DropReason.RESET_TIMEOUT, f"no answer in {task.reset_timeout_s:g} s")
        else:
            self._fail(lease, DropReason.ENV_TIMEOUT, f"no answer in {task.turn_timeout_s:g} s")

    def answered(self, handle: EnvHandle, answer: talk.Answer) -> None:
        lease = self._by_handle.get(id(handle))
        if lease is None or lease.call is None:
            # An answer without a request: the environment's process can't be trusted anymore.
            if lease is not None:
                lease.death = "it sent an answer without a request"
            self._backend(handle.task).remove(handle)
            return
        if isinstance(answer, talk.Raised):
            status = DropReason.RESET_FAILED if isinstance(lease.call, talk.Reset) else DropReason.ENV_ERROR
            self._fail(lease, status, answer.detail, answer.trace)
            return
        lease.call = None
        seconds = time.monotonic() - lease.called_s
        self._happened.append(
            Happened(lease.slot, "turn", answer.observation, answer.done, answer.outcome, seconds=seconds)
        )

    def died(self, handle: EnvHandle, detail: str) -> None:
        lease = self._by_handle.get(id(handle))
        if lease is None:
            return
        if lease.call is None:
            lease.death = detail  # reported with the next request: until then nobody waits for an answer
        else:
            is_reset = isinstance(lease.call, talk.Reset)
            self._fail(lease, DropReason.RESET_FAILED if is_reset else DropReason.ENV_CRASHED, detail)

    def _fail(self, lease: Lease, status: DropReason, detail: str, trace: str = "") -> None:
        seconds = time.monotonic() - lease.called_s
        self._end(lease, reusable=False)
        self._happened.append(
            Happened(lease.slot, "failed", status=status, detail=detail, trace=trace, seconds=seconds)
        )

    def _end(self, lease: Lease, *, reusable: bool) -> None:
        del self._leases[lease.slot], self._by_handle[id(lease.handle)]
        backend = self._backend(lease.task)
        if reusable and not lease.death:
            backend.give_back(lease.handle)
        else:
            backend.remove(lease.handle)

    def _backend(self, task: str) -> EnvBackend:
        return self.processes if self._tasks[task].isolation == "process" else self._threads

    def close(self) -> None:
        self.processes.close()
        self._threads.close()
