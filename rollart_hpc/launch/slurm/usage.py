"""GPU-hours of a run by hardware class: allocated, and idle among those. Never calls Slurm.

Allocated time runs from the start to the end of each job that holds GPUs. Busy time comes from the traces of the
processes on GPUs.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator

from rollart_hpc.launch.plan import Plan
from rollart_hpc.launch.slurm import record
from rollart_hpc.observe import timeline
from rollart_hpc.observe.status import GpuHours
from rollart_hpc.observe.trace import CATEGORIES
from rollart_hpc.observe.trace_sums import busy_s
from rollart_hpc.rundir import RunDir

HOUR_S = 3600.0
BUSY = frozenset(CATEGORIES) - {"wait"}


def usage(run: RunDir, plan: Plan, up_s: float) -> dict[str, GpuHours]:
    """`up_s`: total time that the run was up. Used for a job that was killed and has no recorded end."""
    given = _given(record.read(run), up_s)
    busy = _busy(run, plan)
    return {
        hardware: GpuHours(round(held / HOUR_S, 4), round(max(0.0, held - busy[hardware]) / HOUR_S, 4))
        for hardware, held in given.items()
    }


def _given(records: list[record.Record], up_s: float) -> defaultdict[str, float]:
    """GPU-seconds by class."""
    begun = {(line.job, line.restart): line for line in records if isinstance(line, record.Began)}
    ended = {(line.job, line.restart): line for line in records if isinstance(line, record.Ended)}
    lasted = {key: ended[key].time_s - line.time_s for key, line in begun.items() if key in ended}
    untold_s = max(0.0, up_s - sum(lasted.values())) / max(1, len(begun) - len(lasted))
    held: defaultdict[str, float] = defaultdict(float)
    for key, line in begun.items():
        for part in line.parts:
            if part.num_gpus:
                held[part.hardware] += part.num_gpus * lasted.get(key, untold_s)
    for start, lasted_s in _satellites(records):
        held[start.hardware] += start.num_gpus * lasted_s
    return held


def _satellites(records: list[record.Record]) -> Iterator[tuple[record.Satellite, float]]:
    """Starts of jobs that held only nodes for the run, and seconds; until now, or the run's end, if it has none."""
    until_s = max((line.time_s for line in records if isinstance(line, record.Ended)), default=time.time())
    begun: dict[str, record.Satellite] = {}
    for line in records:
        if isinstance(line, record.Satellite) and line.num_gpus and line.what in ("began", "ended"):
            before = begun.pop(line.unit, None)
            if before is not None:
                yield before, line.time_s - before.time_s
            if line.what == "began":
                begun[line.unit] = line
    yield from ((line, max(0.0, until_s - line.time_s)) for line in begun.values())


def _busy(run: RunDir, plan: Plan) -> defaultdict[str, float]:
    busy: defaultdict[str, float] = defaultdict(float)
    for proc in plan.procs:
        if not proc.needs.gpus:
            continue
        hardware = plan.component_of(proc.node).hardware
        for path in (run.trace_part(attempt, proc.name) for attempt in run.attempt_numbers()):
            if path.exists():
                spans = (span for span in timeline.read_file(path) if span.category in BUSY)
                busy[hardware] += proc.needs.gpus * busy_s(spans)
    return busy
