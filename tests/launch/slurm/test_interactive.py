"""A prompt in front of a supervisor: whatever ends the one has the other save and end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollart_hpc.config.load import load, load_site
from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.slurm.interactive import salloc_command
from rollart_hpc.rundir import RunDir

LIMIT_S = 120.0
PROMPT = """
import sys, time
from pathlib import Path
from rollart_hpc.launch.slurm.interactive import supervised
held = [sys.executable, "-m", "rollart_hpc.launch.slurm.held", sys.executable, "-c", sys.argv[1]]
with supervised(held, Path("logs/debug.log"), print):  # without the srun, which hands its input on
    time.sleep(1000)
"""
SUPERVISOR = """
import os, signal, sys, time
from pathlib import Path
from rollart_hpc.processes.lifetime import end_with_parent
def end(number, frame):
    Path("saved").touch()
    sys.exit()
signal.signal(signal.SIGTERM, end)
end_with_parent(signal.SIGTERM)
Path("up").write_text(str(os.getpid()))
time.sleep(1000)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_whatever_ends_the_prompt_has_the_run_saved(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", PROMPT, SUPERVISOR], cwd=tmp_path) as prompt:
        until_there(tmp_path / "up")
        prompt.send_signal(number)
        assert prompt.wait(LIMIT_S) == code
    until_there(tmp_path / "saved")


def until_there(path: Path) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < deadline_s, f"no {path}"
        time.sleep(0.05)


def test_salloc_is_told_what_the_site_and_the_run_say_further(tmp_path: Path) -> None:
    config, site = load("quickstart", ["job.sbatch={nice: 7, kill-on-invalid-dep: true}"]), load_site("dev")
    site.sbatch["exclusive"] = True
    run = RunDir(tmp_path)
    write_resolved(run.config, config)
    write_resolved(run.site, site)
    first, second, third, *_ = " ".join(salloc_command(run, make_plan(config, site), ["inside"])).split(" : ")
    assert first.startswith("salloc --kill-command=TERM --job-name=rollart-quickstart-")
    for component in (first, second, third):
        assert "--exclusive --nice=7" in component and "invalid" not in component
