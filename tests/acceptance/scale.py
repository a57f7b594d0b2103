"""200 nodes: from submission until 600 processes are registered and every engine has a version. Real Slurm, supervisor,
agents and controller; the workers are stand-ins without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rollart_hpc.config.load import load_all
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.plan_file import create_run
from rollart_hpc.launch.slurm.script import SUPERVISOR, render_script
from rollart_hpc.observe.status import read_status
from rollart_hpc.rundir import RunDir
from tests.acceptance.drive import ROOT, rollart, table, write_page
from tests.acceptance.slurm import cluster
from tests.acceptance.stand_in import INSTALLED

NODES = 200
LIMIT_S = 900.0
SITE = """
base: dev
prologue: export PYTHONPATH={root}
classes: {{cpu: {{max_nodes: 0}}, h800: {{max_nodes: 0}}, h20: {{max_nodes: 0}}}}
"""
OVERRIDES = [
    "pools={compute: {engines: 98, tensor_parallel: 4}, bandwidth: {engines: 100, tensor_parallel: 4}}",
    "trainer.ranks=8", "env={workers: 200, cpus: 5}", "reward={workers: 97, cpus: 5}", "timeouts.start_s=900",
    "timeouts.silence_s=120", "validation.plays=0", "flow.groups_per_step=1",
]  # fmt: skip


def submit(keep: Path) -> tuple[RunDir, dict[str, int]]:
    site = keep / "site.yaml"
    site.write_text(SITE.format(root=ROOT))
    model = keep / "model"
    rollart("model", "tiny", str(model))
    loaded = load_all("quickstart", [*OVERRIDES, "model.kind=directory", f"model.path={model}"], site=str(site))
    run, plan = RunDir(keep / "run"), make_plan(loaded.config, loaded.site)
    create_run(run, loaded.config, loaded.site, plan)
    run.job_logs.mkdir()
    script = render_script(plan, loaded.config, loaded.site, run).replace(SUPERVISOR, "tests.acceptance.stand_in_job")
    run.script.write_text(script)
    subprocess.run(["sbatch", "--parsable", str(run.script)], check=True, stdout=subprocess.DEVNULL)
    sizes = {
        "nodes": sum(len(component.nodes) for component in plan.components),
        "processes": len(plan.procs),
        "engines": len(plan.of("engine")),
        "joining": sum(proc.rank == 0 for proc in plan.workers),
    }
    return run, sizes


def until(condition: Any, what: str, run: RunDir) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            logs = "\n".join(path.read_text()[-2000:] for path in sorted(run.job_logs.glob("*"))[:5])
            sys.exit(f"waited too long for {what}\n{logs}")
        time.sleep(0.2)


def registered(run: RunDir) -> int:
    status = read_status(run.status)
    return sum(workers.alive for workers in status.workers.values()) if status else 0


def num_sruns(run: RunDir) -> int:
    """Of agents: each has its own log."""
    return len([*run.job_logs.glob("agent*.log")])


def scale(keep: Path) -> bool:
    with cluster(keep / "cluster", "--nodes", str(NODES)):
        began_s = time.monotonic()
        run, sizes = submit(keep)
        submitted_s = time.monotonic()
        until(run.agents.exists, "the supervisor", run)
        marks = {"supervisor up": time.monotonic() - submitted_s}
        until(lambda: registered(run) >= sizes["joining"], "all processes to register", run)
        marks["all processes registered"] = time.monotonic() - submitted_s
        installed = run.path / INSTALLED
        until(lambda: installed.exists() and len(os.listdir(installed)) == sizes["engines"], "the installs", run)
        marks["a version installed on every engine"] = time.monotonic() - submitted_s
        sizes["sruns"] = num_sruns(run)
        rollart("cancel", str(run.path))
    print(json.dumps({**sizes, **marks, "prepared_s": submitted_s - began_s}))
    write_page("scale", page(sizes, marks))
    return sizes["nodes"] >= NODES - 4 and sizes["processes"] >= 600


def page(sizes: dict[str, int], marks: dict[str, float]) -> list[str]:
    return [
        f"# {NODES} nodes",
        "",
        f"A run on a development cluster of {NODES} slurmd on one machine with 2 cores. Slurm, supervisor, agents and",
        "controller are real; the workers are stand-ins without torch, which register over CURVE and acknowledge",
        "versions. Their start is bound by the two cores that all nodes share. Measured by:",
        "",
        "```",
        "make acceptance-scale",
        "```",
        "",
        *table(["", ""], [[name, str(count)] for name, count in sizes.items()]),
        "",
        *table(["from submission to", "s"], [[name, f"{value:.1f}"] for name, value in marks.items()]),
    ]
