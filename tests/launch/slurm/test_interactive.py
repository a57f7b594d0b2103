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
from rollart_hpc.errors import UserError
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.interactive import SlurmSession, salloc_command, supervisor_command
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


@pytest.fixture
def session(tmp_path: Path) -> SlurmSession:
    config, site = load("quickstart"), load_site("dev")
    site.prologue = "module load tools"
    run = RunDir(tmp_path / "a run")
    run.path.mkdir()
    write_resolved(run.config, config)
    write_resolved(run.site, site)
    plan = make_plan(config, site)
    nodes = [node for component in plan.components for node in component.nodes]
    return SlurmSession(run, plan, Allocation(12, (12, 13, 14), {node: f"host-of-{node}" for node in nodes}, 0))


def test_the_supervisor_runs_on_the_first_node_with_the_allocation_s_variables(session: SlurmSession) -> None:
    variables = {
        "SLURM_JOB_ID": "12", "SLURM_HET_SIZE": "3", "SLURM_JOB_NODELIST_HET_GROUP_1": "h[1-2]", "SLURM_MEM": "1",
    }  # fmt: skip
    *options, shell, login, flag, script = supervisor_command(session, "prompt", variables)
    assert options[:3] == ["srun", "--jobid=12", "--het-group=0"] and "--nodelist=host-of-cpu-0" in options
    assert not [option for option in options if option.startswith("--input")], (
        "newer Slurm closes a task number's input"
    )
    assert "--overlap" in options and (shell, login, flag) == ("/bin/bash", "-l", "-c")
    assert "module load tools\nexec env SLURM_JOB_ID=12 SLURM_HET_SIZE=3 " in script and "SLURM_MEM" not in script
    assert script.endswith(f"--run-dir '{session.run.path}' --held-by=prompt")


def test_attach_sees_the_gpus_of_the_process(session: SlurmSession) -> None:
    command = session.attach("engine-bandwidth-0")
    assert "--overlap" in command and "--nodelist=host-of-h20-0" in command and "--het-group=2" in command
    assert not any(word.startswith("--gres") for word in command)
    with pytest.raises(UserError, match="no process of this run is called 'engine'"):
        session.attach("engine")
