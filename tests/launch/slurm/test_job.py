"""The process that a batch script becomes, without a cluster around it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from rollart_hpc.launch.slurm import job
from rollart_hpc.rundir import RunDir


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
