"""The controller's records: ledger, metrics, events, status. Owns those files; never changes the run.

`ledger.jsonl` has a line per committed step and is the proof of exactly-once: every line names the weights
before and after the step, so the chain that survives restores can be followed backwards.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import msgspec

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.files import append_line, mend
from rollart_hpc.flow import events as ev
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.state import TaskTally
from rollart_hpc.observe import ledger, metrics
from rollart_hpc.observe.metrics import Board, MetricsLog
from rollart_hpc.observe.status import (
    AffinityStatus,
    StalenessStatus,
    Status,
    TaskStatus,
    WaitStatus,
    WeightsStatus,
    WorkerStatus,
    read_status,
    write_status,
)
from rollart_hpc.observe.trace import Tracer
from rollart_hpc.roles.kv_use import KvUse
from rollart_hpc.roles.roll import Roll
from rollart_hpc.roles.step_line import means_of, staleness_of
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import EventKind, LineKind, ProcessState, RunState
from rollart_hpc.wire import messages as ms

STATUS_EVERY_S = 1.0


class Journal:
    def __init__(self, run: RunDir, config: RunConfig, core: Core, hub_counters: Counter[str]) -> None:
        self.run, self.config, self.core, self.hub_counters = run, config, core, hub_counters
        self.metrics = MetricsLog(run.metrics)
        self.board = Board(run.tensorboard)
        self.tracer = Tracer(run.trace_part(core.attempt, "controller"), "controller", config.observe.trace_bytes)
        self.tracer.set_offset(0.0)
        mend(run.ledger)
        self._roll = _earlier_roll(run)
        self._kv = KvUse()
        self._spent_s: defaultdict[str, float] = defaultdict(float)  # by all processes together, since the last step
        self._moved_s = 0.0  # spent publishing and forwarding weights
        self._moved_bytes = 0
        self._began = time.monotonic()
        self._before_s = _elapsed_before(run)
        self._last_step_s = self._began
        self._last_tokens = self._generated_tokens()  # not 0 in a restored run
        self._tokens_per_s = 0.0
        self._status_due = 0.0
        self._writer = ThreadPoolExecutor(1, "status")
        self._writing: Future[None] | None = None
        self._state, self._reason = RunState.STARTING, ""
        self.event(
            EventKind.WORKER_JOINED, "controller", f"attempt {core.attempt}, pid {os.getpid()}", role="controller"
        )

    @property
    def time_s(self) -> float:
        """Seconds the run has been up, over all attempts of the controller."""
        return self._before_s + time.monotonic() - self._began

    # --- what happened -----------------------------------------------------------------------

    def joined(self, hello: ms.Hello) -> None:
        detail = f"{hello.role} on {hello.node}, pid {hello.pid}"
        self.event(EventKind.WORKER_JOINED, hello.name, detail, role=hello.role)
        if hello.role == "engine":
            self._kv.joined(hello.name, hello.pool, hello.kv_tokens)

    def gone(self, hello: ms.Hello, reason: str, state: ProcessState) -> None:
        self._kv.left(hello.name)
        what = EventKind.WORKER_LEFT if state is ProcessState.LEFT else EventKind.WORKER_LOST
        self.event(what, hello.name, reason, role=hello.role)

    def event(self, what: EventKind, name: str, detail: str = "", role: str = "") -> None:
        more = {"role": role} if role else {}
        self.metrics.event(what, time_s=self.time_s, name=name, detail=detail, **more)
        self._roll.see(what, role, detail)

    def restored(self, version: int, attempt: int, damage: Iterable[str] = ()) -> None:
        """The run continues from this version. `damage`: what was wrong with newer checkpoints."""
        found = list(damage)
        for text in found:
            self.event(EventKind.CHECKPOINT_DAMAGED, str(version), text)
        append_line(self.run.ledger, ledger.encode(ledger.Restored(attempt, version, "; ".join(found))).decode())

    def saw(self, name: str, message: ms.Message) -> None:
        """Add up the times and KV use that messages report."""
        match message:
            case ms.Generated():
                self._kv.saw(name, message.kv_used_tokens)
                self._spent_s["queue"] += message.queue_s
                self._spent_s["prefill"] += message.prefill_s
                self._spent_s["decode"] += message.decode_s
            case ms.Prefilled():
                self._kv.saw(name, message.kv_used_tokens)
            case ms.Ended():
                self._spent_s["environment"] += message.reset_s + message.env_s
            case ms.Scored():
                self._spent_s["reward"] += message.seconds
            case ms.Installed():
                self._spent_s["weights"] += message.exposed_s
            case ms.Published() | ms.TransferSent():
                self._moved_s += message.seconds
                self._moved_bytes += message.num_bytes

    def step(self, record: ev.RecordStep, commit: ms.Committed) -> None:
        self._write_ledger(record, commit)
        now = time.monotonic()
        tokens = self._generated_tokens()
        self._tokens_per_s = (tokens - self._last_tokens) / max(now - self._last_step_s, 1e-9)
        line = {
            "step": commit.step,
            "version": commit.version,
            "attempt": record.attempt,
            "time_s": self.time_s,
            "step_s": now - self._last_step_s,
            "wait_s": commit.wait_s,
            "train_s": commit.train_s,
            "tokens": tokens - self._last_tokens,
            "tokens_per_s": self._tokens_per_s,
            "staleness": {str(k): v for k, v in sorted(staleness_of(record).items())},
            **means_of(record),
            "spent_s": dict(self._spent_s),
            "kv_used": self._kv.take_peaks(),
            **self._affinities(),
            "metrics": commit.metrics,
        }
        self._spent_s.clear()
        self.tracer.span("step", self._last_step_s, now, step=commit.step)
        self._last_step_s, self._last_tokens = now, tokens
        self.metrics.step(line)
        self.board.step(line)

    def _affinities(self) -> dict[str, Any]:
        """Choices for tasks with `affinity: auto`, and the figures behind them."""
        found = {task: self._affinity(task) for task in self.core.router.affinity.choices}
        return {"affinity": msgspec.to_builtins(found)} if found else {}

    def validation(self, version: int) -> None:
        done = next(v for v in self.core.validator.done if v.version == version)
        for task, score in done.scores.items():
            line = {
                "version": version,
                "time_s": self.time_s,
                "task": task,
                "plays": score.plays,
                "failed": score.failed,
                "success": score.success,
                "reward": score.reward,
                "turns": score.turns / score.plays if score.plays else None,
                "versions": [score.lowest_version, score.highest_version],
                "each": _columns(sorted(score.each), "seed", "reward", "success"),
            }
            self.metrics.validation(line)
            self.board.validation(line)

    def ended(self, state: RunState, reason: str) -> None:
        self._state, self._reason = state, reason
        self.event(EventKind(state), "run", reason)
        self._write_status()

    def tick(self, now: float) -> None:
        if self._state is RunState.STARTING and self.core.tally.installs:
            self._state = RunState.RUNNING
            self.event(EventKind.RUNNING, "run", "the first engine has weights")
        if now >= self._status_due:
            self._status_due = now + STATUS_EVERY_S
            self._write_status_aside()

    def close(self) -> None:
        self._writer.shutdown()
        self._write_status()
        self.tracer.close()
        self.board.close()
        self.metrics.close()

    # --- files -------------------------------------------------------------------------------

    def _write_ledger(self, record: ev.RecordStep, commit: ms.Committed) -> None:
        members = [member for group in record.groups for member in group.members]
        line = ledger.Line(
            record.attempt,
            commit.step,
            commit.version,
            commit.parent_digest,
            commit.digest,
            [group.id for group in record.groups],
            [member.id for member in members],
            [member.first_version for member in members],
        )
        append_line(self.run.ledger, ledger.encode(line).decode())  # on the disk before the next checkpoint is

    def progress(self) -> ms.Progress:
        core = self.core
        return ms.Progress(
            self._state,
            core.tally.progress,
            core.trajectories.num_to_score,
            dict(self._alive()),
            core.router.turns(),
        )

    def _write_status(self) -> None:
        """Write the status now, after the write in progress."""
        wait([self._writing] if self._writing else [])
        write_status(self.run.status, self.status())

    def _write_status_aside(self) -> None:
        """Write the status in a thread: on a parallel file system a write may take longer than all turns of a second.

        While a write is in progress the next one is skipped.
        """
        if self._writing is not None:
            if not self._writing.done():
                return
            self._writing.result()  # raises if the write failed
        self._writing = self._writer.submit(write_status, self.run.status, self.status())

    def status(self) -> Status:
        core, tally = self.core, self.core.tally
        busy_s = tally.wait_s + tally.train_s
        return Status(
            name=self.config.name,
            state=self._state,
            reason=self._reason,
            mode=self.config.mode,
            step=core.version,
            steps=self.config.steps,
            policy_version=core.version,
            attempt=core.attempt,
            time_s=self.time_s,
            tokens_per_s=self._tokens_per_s,
            playing=core.trajectories.num_playing,
            to_score=core.trajectories.num_to_score,
            progress=tally.progress,
            checkpoint=core.saved_version,
            validating=core.validator.running.version if core.validator.running else None,
            tasks={name: self._task(name, task) for name, task in tally.tasks.items()},
            staleness=StalenessStatus(
                bound=core.rules.alpha,
                max_trained=max(tally.staleness, default=0),
                histogram={str(k): v for k, v in sorted(tally.staleness.items())},
            ),
            dropped={reason.value: count for reason, count in tally.dropped.items()},
            fallbacks=tally.fallbacks,
            split_requests=tally.split_requests,
            split_fallbacks=tally.split_fallbacks,
            stray_requests=tally.stray_requests,
            workers=self._workers(),
            aside={
                name: f"{entry.worker.role} on node {entry.worker.node}: {entry.reason}"
                for name, entry in core.bench.aside.items()
            },
            updates_skipped=tally.updates_skipped,
            pools=self._kv.pools,
            weights=self._weights(),
            wait=WaitStatus(tally.wait_s / busy_s if busy_s else 0.0),
            refused=dict(self.hub_counters),
            report=str(self.run.report),
            updated=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        )

    def _weights(self) -> WeightsStatus:
        tally = self.core.tally
        return WeightsStatus(
            transport=self.config.weights.transport,
            collective=self.config.weights.collective if self.config.weights.transport == "staged" else "",
            transfers=tally.installs,
            relay_transfers=tally.transfers,
            failures=tally.transfer_failures,
            fallbacks=tally.transfer_fallbacks,
            total_s=self._moved_s + tally.install_s,
            exposed_s=tally.exposed_s,
            bytes=self._moved_bytes + tally.install_bytes,
        )

    def _task(self, name: str, task: TaskTally) -> TaskStatus:
        found = [v.scores[name].success for v in self.core.validator.done if name in v.scores]
        scores = [success for success in found if success is not None]
        served = sum(task.requests_by_pool.values())
        return TaskStatus(
            score_first=scores[0] if scores else None,
            score_last=scores[-1] if scores else None,
            validations=len(scores),
            trajectories=task.trajectories,
            groups_trained=task.groups,
            success=task.successes / task.trajectories if task.trajectories else None,
            reward=task.reward_sum / task.trajectories if task.trajectories else None,
            pool_share={pool: count / served for pool, count in task.requests_by_pool.items()},
            turns=task.turns,
            prefill_tokens=task.prefill_tokens,
            decode_tokens=task.decode_tokens,
            quarantined=task.quarantined,
            quarantine_reason=task.quarantine_reason,
            last_error=task.last_error,
            affinity=self._affinity(name),
        )

    def _affinity(self, task: str) -> AffinityStatus | None:
        affinity = self.core.router.affinity
        if task not in affinity.choices:
            return None
        why = affinity.why(task)
        figures = why.prompt, why.prefilled, why.decoded, why.reuse, why.turn_s
        return AffinityStatus(why.choice, affinity.has_chosen, *figures)

    def _workers(self) -> dict[str, WorkerStatus]:
        alive, roll = self._alive(), self._roll
        roles = sorted({*roll.joined, "env", "engine", "trainer", "reward"})
        return {role: WorkerStatus(roll.joined[role], roll.lost[role], alive[role], roll.left[role]) for role in roles}

    def _alive(self) -> Counter[str]:
        """Living processes by role, also those that are set aside."""
        alive: Counter[str] = Counter(worker.role for worker in self.core.workers.values())
        alive.update(entry.worker.role for entry in self.core.bench.aside.values())
        alive["controller"] = 1
        return alive

    def _generated_tokens(self) -> int:
        return sum(task.decode_tokens for task in self.core.tally.tasks.values())


def _columns(rows: list[tuple[Any, ...]], *names: str) -> dict[str, list[Any]]:
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def _earlier_roll(run: RunDir) -> Roll:
    """The counts of earlier controllers of this run."""
    roll = Roll()
    for line in (line for line in metrics.lines(run.metrics) if line.get("kind") == LineKind.EVENT):
        roll.see(line.get("what", ""), line.get("role", ""), line.get("detail", ""))
    return roll


def _elapsed_before(run: RunDir) -> float:
    """Seconds that earlier controllers of this run were up."""
    with suppress(SiteError):  # a damaged status is overwritten
        status = read_status(run.status)
        return status.time_s if status is not None else 0.0
    return 0.0
