from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rollart_hpc import __version__
from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.processes.about import cgroup_memory
from rollart_hpc.processes.lifetime import OFFLINE
from rollart_hpc.rundir import RunDir


def test_the_log_of_a_role_begins_with_what_it_is_and_may_use(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    write_resolved(run.config, RunConfig())
    code = "import sys; from rollart_hpc.roles.start import run_role; run_role('env', lambda _: print(*sys.modules))"
    command = [sys.executable, "-c", code, "--run-dir", str(run.path), "--name", "env-7", "--node", "cpu-3"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "2,3"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    first = done.stderr.splitlines()[0]
    for part in (
        f"env-7: host {os.uname().nodename}, pid ", "node cpu-3; GPUs visible: 2,3; ", " CPUs (",
        f"python {sys.version.split()[0]}, rollart-hpc {__version__}, ", "pyzmq ", "open files ", "memlock ",
        "address space ", "cgroup memory ",
    ):  # fmt: skip
        assert part in first
    assert not {"torch", "transformers", "vllm"} & {*done.stdout.split()}, "versions are read without an import"


def test_the_smallest_limit_of_memory_around_a_process_counts(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    for line, name, files in (
        ("0::/job/step", "memory.max", {"job": "4096", "job/step": "max"}),
        ("5:memory:/job/step", "memory.limit_in_bytes", {"memory/job": str(1 << 62), "memory/job/step": "4096"}),
    ):
        own.write_text(f"9:cpuset:/\n{line}\n")
        for place, text in files.items():
            (tmp_path / place).mkdir(parents=True, exist_ok=True)
            (tmp_path / place / name).write_text(text)
        assert cgroup_memory(str(own), tmp_path) == 4096
    own.write_text("0::/elsewhere\n")
    assert cgroup_memory(str(own), tmp_path) is None


def test_every_role_stays_offline_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    write_resolved(run.config, RunConfig())
    code = (
        "import os; from rollart_hpc.roles.start import parse;"
        f"parse('env', ['--run-dir', {str(run.path)!r}]);"
        f"print(*(os.environ[name] for name in {list(OFFLINE)!r}))"
    )
    environment = {key: value for key, value in os.environ.items() if key not in OFFLINE} | {"HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["0", "1"]
