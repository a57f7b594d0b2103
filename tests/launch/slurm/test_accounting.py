"""sacct's rows as Slurm prints them, and clusters that have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.cli.usage import usage_lines
from rollart_hpc.launch.slurm import accounting, record
from rollart_hpc.launch.slurm.commands import SEPARATOR, Answer, Slurm
from rollart_hpc.launch.status import RunStatus
from rollart_hpc.observe.status import GpuHours
from rollart_hpc.rundir import RunDir

ROWS = """
12|60|360|02:00.500||6291456K
12.batch|60|360|01:00.000|1048576K|
12.0|30|30|00:30.000|2097152K|
12|40|240|00:59.500||6291456K
13|100|200|1-00:00:00||3145728K
13.1|100|200|01:00:00|3145728K|
14|5|5|00:00:01||1048576K
99|9|9|00:00:09||1K
"""


class Sacct(Slurm):
    def __init__(self, code: int = 0, stderr: str = "", rows: str = ROWS) -> None:
        super().__init__()
        self.answer = Answer(code, rows.strip().replace("|", SEPARATOR), stderr)

    def ask(self, *command: str, **_: Any) -> Answer:
        assert command[0] == "sacct" and "--jobs=12,13,14" in command and "--duplicates" in command
        return self.answer


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run").create()
    parts = [record.Part(12, "cpu", "c", ["n1"], 0), record.Part(13, "h20", "h", ["n2"], 4)]
    for restart in range(2):
        record.add(run, record.Began(12, restart, -1, parts))
    record.add(run, record.ElasticJob(14, "x"))
    record.add(run, record.Began(7, 0, -1, [record.Part(7, "cpu", "c", ["n1"], 0)], held_by="user"))
    return run


def test_times_and_memory_of_all_starts_by_class(run: RunDir) -> None:
    found, why = accounting.used(run, Sacct())
    assert why == "" and set(found) == {"cpu", "h20", accounting.ELASTIC}
    assert (found["cpu"].elapsed_s, found["cpu"].allocated_cpu_s, found["cpu"].cpu_s) == (100, 600, 180)
    assert (found["cpu"].max_rss_gb, found["cpu"].memory_gb) == (2, 6) and found["h20"].cpu_s == 86400


def test_a_cluster_without_accounting_says_so(run: RunDir) -> None:
    off = Sacct(1, "Slurm accounting storage is disabled\n")
    assert accounting.used(run, off)[1].endswith("(Slurm accounting storage is disabled)")
    assert "does not know the jobs" in accounting.used(run, Sacct(rows=""))[1]
    assert "no job of its own" in accounting.used(RunDir(run.path / "none"), off)[1]


def test_the_lines_that_a_user_reads(run: RunDir) -> None:
    status = RunStatus(gpu_hours={"h20": GpuHours(2.0, 0.5)}, cost=4.25)
    status.used, status.accounting = accounting.used(run, Sacct())
    lines = usage_lines(status)
    assert lines[:2] == ["GPU-hours on h20: 2.000, 0.500 of them idle (25%)", "cost: 4.25"]
    assert lines[2] == "cpu: CPU time 0.050 of 0.167 h (30%), largest step 2 GB of 6 GB per node"
    assert usage_lines(RunStatus(accounting="no accounting")) == ["no accounting"] and usage_lines(RunStatus()) == []
