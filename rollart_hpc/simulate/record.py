"""A simulation as a run directory: the metrics, status and traces that a real run writes, so that `report` reads them.

Times are virtual. Rewards and successes are not simulated, so the lines have none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.observe.metrics import MetricsLog
from rollart_hpc.observe.status import StalenessStatus, Status, TaskStatus, WaitStatus, WeightsStatus, write_status
from rollart_hpc.observe.trace import Tracer
from rollart_hpc.roles.step_line import means_of, staleness_of
from rollart_hpc.rundir import RunDir
from rollart_hpc.simulate.cluster import Cluster, Step
from rollart_hpc.vocabulary import EventKind, RunState


class Recorder:
    """Collects spans while a cluster runs; `finish` writes the rest."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        self.run = RunDir(path).create()
        self.config = config
        self._attempt = self.run.begin_attempt()
        self._tracers: dict[str, Tracer] = {}

    def span(self, process: str, name: str, start_s: float, end_s: float, **args: Any) -> None:
        tracer = self._tracers.get(process)
        if tracer is None:
            path = self.run.trace_part(self._attempt, process)
            self._tracers[process] = tracer = Tracer(path, process, self.config.observe.trace_bytes)
            tracer.set_offset(0.0)
        tracer.span(name, start_s, end_s, **args)

    def finish(self, cluster: Cluster) -> None:
        write_resolved(self.run.config, self.config)
        log = MetricsLog(self.run.metrics)
        log.event(EventKind.RUNNING, time_s=0.0, name="run", detail="simulated: all times are virtual")
        before_s = 0.0
        for number, step in enumerate(cluster.steps):
            log.step(_line(number, step, before_s))
            self.span("controller", "step", before_s, step.at_s)
            before_s = step.at_s
        log.close()
        for tracer in self._tracers.values():
            tracer.close()
        write_status(self.run.status, _status(self.config, cluster, self.run))


def _line(number: int, step: Step, before_s: float) -> dict[str, object]:
    seconds = step.at_s - before_s
    return {
        "step": number,
        "version": step.record.version,
        "attempt": 1,
        "time_s": step.at_s,
        "step_s": seconds,
        "wait_s": step.wait_s,
        "train_s": step.train_s,
        "tokens": step.tokens,
        "tokens_per_s": step.tokens / max(seconds, 1e-9),
        "staleness": {str(k): v for k, v in sorted(staleness_of(step.record).items())},
        "turns": means_of(step.record)["turns"],
        "spent_s": step.spent_s,
        "kv_used": step.kv_used,
        "metrics": {},
    }


def _status(config: RunConfig, cluster: Cluster, run: RunDir) -> Status:
    core, tally = cluster.core, cluster.core.tally
    busy_s = tally.wait_s + tally.train_s
    return Status(
        name=f"{config.name} (simulated)",
        state=RunState.FINISHED,
        reason=cluster.reason,
        mode=config.mode,
        step=core.version,
        steps=len(cluster.steps),
        policy_version=core.version,
        attempt=1,
        time_s=cluster.clock.now,
        tasks={name: _task(cluster, name) for name in tally.tasks},
        staleness=StalenessStatus(
            core.rules.alpha, max(tally.staleness, default=0), {str(k): v for k, v in sorted(tally.staleness.items())}
        ),
        dropped={reason.value: count for reason, count in tally.dropped.items()},
        weights=WeightsStatus(
            config.weights.transport,
            transfers=tally.installs,
            relay_transfers=tally.transfers,
            total_s=tally.install_s,
            exposed_s=tally.exposed_s,
            bytes=tally.install_bytes,
        ),
        wait=WaitStatus(tally.wait_s / busy_s if busy_s else 0.0),
        report=str(run.report),
    )


def _task(cluster: Cluster, name: str) -> TaskStatus:
    task = cluster.core.tally.tasks[name]
    served = sum(task.requests_by_pool.values())
    return TaskStatus(
        trajectories=task.trajectories,
        groups_trained=task.groups,
        pool_share={pool: count / served for pool, count in task.requests_by_pool.items()},
        turns=task.turns,
        prefill_tokens=task.prefill_tokens,
        decode_tokens=task.decode_tokens,
    )
