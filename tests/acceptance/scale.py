"""25 to 200 nodes: from submission until three processes per node are registered and engines have a version.

Real Slurm, supervisor, agents and controller; the workers are stand-ins without torch. The figures of each size are in
docs/results/scale.json, so that one size can be measured alone.
"""

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
from tests.acceptance.drive import RESULTS, ROOT, rollart, table, write_page
from tests.acceptance.slurm import cluster
from tests.acceptance.stand_in import INSTALLED

SIZES = (25, 100, 200)
LIMIT_S = 900.0
FIGURES = RESULTS / "scale.json"
SITE = """
base: dev
prologue: export PYTHONPATH={root}
classes: {{cpu: {{max_nodes: 0}}, h800: {{max_nodes: 0}}, h20: {{max_nodes: 0}}}}
"""


def overrides(nodes: int) -> list[str]:
    """Nearly all nodes have work: half of them have CPUs, a quarter each kind of GPU; one is the trainer's."""
    per_kind = nodes // 4
    return [
        f"pools.compute={{engines: {2 * per_kind - 2}, tensor_parallel: 4}}",
        f"pools.bandwidth={{engines: {2 * per_kind}, tensor_parallel: 4}}", "trainer.ranks=8",
        f"env={{workers: {nodes}, cpus: 5}}", f"reward={{workers: {nodes // 2 - 4 + nodes // 22}, cpus: 4}}",
        "timeouts.start_s=900", "timeouts.silence_s=120", "validation.plays=0", "flow.groups_per_step=1",
    ]  # fmt: skip


def submit(keep: Path, nodes: int) -> tuple[RunDir, dict[str, int]]:
    keep.mkdir()
    site = keep / "site.yaml"
    site.write_text(SITE.format(root=ROOT))
    model = keep / "model"
    rollart("model", "tiny", str(model))
    loaded = load_all("quickstart", [*overrides(nodes), "model.kind=directory", f"model.path={model}"], site=str(site))
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


def scale(keep: Path, sizes: list[int]) -> bool:
    known: dict[str, dict[str, float | str]] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for nodes in sizes:
        known[str(nodes)] = measure(keep, nodes)
        FIGURES.write_text(json.dumps(known, indent=2) + "\n")
        write_page("scale", page([known[size] for size in sorted(known, key=int)]))
    return all(float(known[str(nodes)]["processes"]) >= 3 * nodes for nodes in sizes if nodes >= 100)


def measure(keep: Path, nodes: int) -> dict[str, float | str]:
    with cluster(keep / "cluster", "--nodes", str(nodes)):
        began_s = time.monotonic()
        run, sizes = submit(keep / str(nodes), nodes)
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
    print(json.dumps({**sizes, **marks, "prepared_s": submitted_s - began_s}), flush=True)
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], check=True, stdout=subprocess.PIPE
    )
    return {
        "slurmd": nodes,
        **sizes,
        **{name: round(value, 1) for name, value in marks.items()},
        "commit": commit.stdout.decode().strip(),
    }


def page(rows: list[dict[str, float | str]]) -> list[str]:
    head = list(rows[0])
    return [
        f"# {' and '.join(str(row['slurmd']) for row in rows)} nodes",
        "",
        "A run on a development cluster of so many slurmd on one machine with 2 cores; *nodes* are those it uses.",
        "Slurm, supervisor, agents and controller are real; the workers are stand-ins without torch, which register",
        "over CURVE and acknowledge versions. Their start is bound by the two cores that all nodes share, and by what",
        "else ran there. The last columns are seconds from submission, and the commit that was measured. Measured by:",
        "",
        "```",
        "make acceptance-scale",
        "```",
        "",
        *table(head, [[str(row[name]) for name in head] for row in rows]),
    ]
