"""The process that a batch script becomes, without a cluster around it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.launch.slurm import job
from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.commands import Answer, Slurm
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import ExitCode, RunState


def test_the_limit_s_signal_ends_nothing_when_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do processes that it starts ignore theirs."""
    codes = []

    class Signalled:
        def __init__(self, *_: object) -> None: ...

        def carry_out(self) -> int:
            os.kill(os.getpid(), signal.SIGUSR1)
            codes.append(subprocess.run(["/bin/sh", "-c", "kill -USR1 $$"], check=False).returncode)
            return 0

    monkeypatch.setattr(job, "Job", Signalled)
    before, mask = signal.getsignal(signal.SIGUSR1), os.umask(0o077)
    try:
        assert job.main(["--run-dir", str(RunDir(tmp_path / "run").create().path)]) == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
        os.umask(mask)
    assert codes == [-signal.SIGUSR1]


class LeavesOne(Slurm):
    """Has requeued the first component, and the second one only if told to."""

    def __init__(self) -> None:
        super().__init__()
        self.second = ("RUNNING", "0")

    def records(self, *_: str) -> list[dict[str, str]]:
        return [{"JobState": state, "Restarts": count} for state, count in (("PENDING", "1"), self.second)]

    def ask(self, *command: str, **_: Any) -> Answer:
        assert command == ("scontrol", "requeue", "12")
        self.second = ("PENDING", "1")
        return Answer(0, "", "")


def test_no_component_still_runs_when_the_script_of_a_requeued_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm fails it with the script's exit code, and the others then wait for it for ever."""
    one = object.__new__(job.Job)
    one.run, one.slurm, one.once = RunDir(tmp_path / "run").create(), LeavesOne(), False
    one.allocation = Allocation(12, (12, 13), {}, restart=0)
    monkeypatch.setattr(one, "_note_bad_nodes", lambda: False)
    monkeypatch.setattr(one, "_begin", lambda: None)
    monkeypatch.setattr(one, "_supervise", lambda: (RunState.DRAINED, "signal"))
    assert one.carry_out() == ExitCode.DRAINED
    assert one.slurm.second == ("PENDING", "1")
