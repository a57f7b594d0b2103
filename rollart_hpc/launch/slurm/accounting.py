"""What the jobs of a run used, as Slurm's accounting database says. Owns the query; not every cluster has one.

A job that was requeued has a row for every start. CPU time and memory are there only if the cluster gathers them.
"""

from __future__ import annotations

import re
from collections import defaultdict

from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.budget import seconds
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError
from rollart_hpc.launch.status import Used
from rollart_hpc.rundir import RunDir

ELASTIC = "elastic rewards"
LIMIT_S = 20.0
FIELDS = ("JobIDRaw", "ElapsedRaw", "CPUTimeRAW", "TotalCPU", "MaxRSS", "ReqMem")
_SIZES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(?P<number>[\d.]+)(?P<unit>[KMGT]?)[cn]?")
_GB = 2**30


def used(run: RunDir, slurm: Slurm | None = None) -> tuple[dict[str, Used], str]:
    """By hardware class; and, if that is empty, why."""
    classes = _classes(record.read(run))
    if not classes:
        return {}, "no job of its own has started"
    jobs = f"--jobs={','.join(map(str, classes))}"
    try:
        rows = (slurm or Slurm(limit_s=LIMIT_S)).accounts("sacct", FIELDS, jobs, "--duplicates", "--units=K")
    except SlurmError as error:
        said = (error.stderr.strip() or error.what).splitlines()[-1]
        return {}, f"this cluster has no accounting to ask for CPU time and memory ({said})"
    found = _add_up(rows, classes)
    return found, "" if found else "Slurm's accounting does not know the jobs of this run (yet)"


def _classes(records: list[record.Record]) -> dict[int, str]:
    """Job id of each component -> hardware class. The user's own job also did other things."""
    found: dict[int, str] = {}
    for line in records:
        if isinstance(line, record.Began) and line.held_by != "user":
            found |= {part.job: part.hardware for part in line.parts}
        elif isinstance(line, record.ElasticJob):
            found[line.job] = ELASTIC
        elif isinstance(line, record.Satellite) and line.job:
            found[line.job] = line.hardware
    return found


def _add_up(rows: list[dict[str, str]], classes: dict[int, str]) -> dict[str, Used]:
    """A job's own row has its times, the rows of its steps have the memory of their processes."""
    sums: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        job, _, step = row["JobIDRaw"].partition(".")
        hardware = classes.get(int(job)) if job.isdigit() else None
        if hardware is None:
            continue
        mine = sums[hardware]
        mine["max_rss_gb"] = max(mine["max_rss_gb"], _bytes(row["MaxRSS"]) / _GB)
        if not step:
            mine["elapsed_s"] += float(row["ElapsedRaw"] or 0)
            mine["allocated_cpu_s"] += float(row["CPUTimeRAW"] or 0)
            mine["cpu_s"] += _cpu_s(row["TotalCPU"])
            mine["memory_gb"] = max(mine["memory_gb"], _bytes(row["ReqMem"]) / _GB)
    return {
        hardware: Used(**{name: round(value, 3) for name, value in mine.items()}) for hardware, mine in sums.items()
    }


def _cpu_s(text: str) -> float:
    """1-02:03:04, 02:03:04 or 03:04.567"""
    whole, _, rest = text.partition(".")
    return seconds(whole) + float(f"0.{rest or 0}") if whole else 0.0


def _bytes(text: str) -> float:
    match = _SIZE.fullmatch(text.strip())
    return float(match["number"]) * _SIZES.get(match["unit"], 1) if match else 0.0
