"""One run of an ordinary user on three GPU classes and two CPU classes: who sees which GPUs, an agent that is killed,
and a class in a container.

Apptainer is not installed here: a stand-in notes its arguments and runs the command on the host.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from rollart_hpc.devcluster.cluster import Cluster
from rollart_hpc.launch.ownership import OwnedProcess, read_ownership
from rollart_hpc.launch.plan_file import read_plan
from tests.slurm.submitted import LIMIT_S, SMALL, Submitted

CHECKOUT = SMALL.parent.parent.parent
STEPS = 8
IMAGE = "/images/an image.sif"
STAND_IN = f"""#!/bin/sh
# A stand-in for Apptainer, for tests: notes its arguments and runs the command after the image, on the host.
printf '%s\\n' "$@" > "$(mktemp "$NOTES/XXXXXX")"
while [ "$1" != "{IMAGE}" ]; do shift; done
shift
exec "$@"
"""
SITE = """
base: dev-mixed
classes:
  h20:
    prologue: |
      export NOTES="{home}/notes" PATH="{home}/bin:$PATH"
    python: {python}
    container: {{kind: apptainer, image: {image}, mounts: ["/usr/share:/data:ro"]}}
"""
TASK = """
import os, time
from rollart_hpc.envs.frozenlake import FrozenLake
class Gated(FrozenLake):
    def reset(self, seed):
        while os.path.exists("{gate}"):
            time.sleep(0.1)
        return super().reset(seed)
"""
POOLS = (
    "pools={fast: {class: h800, engines: 1}, wide: {class: h20, engines: 2, engine: {cpus: 9}}, "
    "spare: {class: l40s, engines: 2}}"
)
COMPONENTS = ["fat.cpu", "h800", "h20", "l40s", "io-cpu_2"]
AGENTS_ON = """
import os, sys
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words, variables = (open(f"/proc/{pid}/{name}").read().split("\\0") for name in ("cmdline", "environ"))
    except OSError:
        continue
    is_python = os.path.basename(words[0]).startswith("python")
    if is_python and "rollart_hpc.launch.agents.agent" in words and f"SLURMD_NODENAME={sys.argv[1]}" in variables:
        print(pid)
"""


class Mixed(Submitted):
    """Submitted by alice, from her home directory."""

    def __init__(self, cluster: Cluster, model: Path) -> None:
        self.home = cluster.files.homes / "alice"
        super().__init__(cluster, self.home / "a run", self.home / "model", str(self.home / "site.yaml"))
        self.gate = self.home / "gate"
        shutil.copytree(model, self.model)
        for name, text in {
            "site.yaml": SITE.format(home=self.home, image=IMAGE, python=sys.executable),
            "tasks/gated.py": TASK.format(gate=self.gate),
            "small.yaml": SMALL.read_text(),
            "bin/apptainer": STAND_IN,
        }.items():
            (self.home / name).parent.mkdir(exist_ok=True)
            (self.home / name).write_text(text)
        self.of_alice("mkdir", "notes")
        for path in [self.home, *self.home.rglob("*")]:  # whatever the umask
            path.chmod(0o755)

    def of_alice(self, *command: str) -> str:
        done = self.cluster.run("env", f"PYTHONPATH={CHECKOUT}", *command, user="alice", limit_s=LIMIT_S)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def submit(self, *overrides: str) -> Submitted:
        model = ("model.kind=directory", f"model.path={self.model}")
        where = (str(self.home / "small.yaml"), "--site", self.site, "--run-dir", str(self.run.path))
        self.of_alice(sys.executable, "-m", "rollart_hpc.cli", "submit", *where, *model, *overrides)
        return self

    def procs(self) -> dict[str, OwnedProcess]:
        owner = read_ownership(self.run)
        return owner.procs if owner is not None else {}

    def num_joined(self, name: str) -> int:
        events = [json.loads(line) for line in self.run.metrics.read_text().splitlines()]
        return sum(line.get("what") == "worker_joined" and line["name"] == name for line in events)

    def agents(self) -> Counter[str]:
        """Names of running agent steps, without what makes each start unique."""
        names = self.cluster.run("squeue", "--steps", "--noheader", "--format=%j").stdout.split()
        return Counter(name.partition(".")[0] for name in names if name.startswith("agent"))

    def seen(self, role: str) -> dict[str, tuple[str, str]]:
        """By process of the role: its node and the GPUs it sees, by its own first lines; the same at every start."""
        found = {}
        for path in self.run.logs(1).glob(f"{role}-*.log"):
            (found[path.stem],) = set(re.findall(r", node (\S+); GPUs visible: ([^;]*);", path.read_text()))
        return found

    def notes(self) -> list[list[str]]:
        """The arguments of every call of the stand-in."""
        return [path.read_text().splitlines() for path in (self.home / "notes").iterdir()]


@pytest.fixture
def run(own_mixed_cluster: Cluster, raw_model: Path) -> Mixed:
    return Mixed(own_mixed_cluster, raw_model)


def test_three_gpu_classes_an_agent_that_is_killed_and_a_container(run: Mixed) -> None:
    run.submit(
        f"steps={STEPS}", "validation.plays=0", "timeouts.silence_s=10", "trainer.ranks=2", "trainer.class=h800",
        "env.class=io-cpu_2", "reward.class=io-cpu_2", "reward.workers=1", "controller.class=fat.cpu", POOLS,
        "tasks.frozenlake.affinity=any", "tasks.sorting.affinity=wide", "tasks.frozenlake.reset_timeout_s=600",
        f"tasks.frozenlake.environment={run.home}/tasks/gated.py:Gated",
    )  # fmt: skip
    run.until_steps(1)
    run.gate.touch()
    assert [part.hardware for part in run.begun()[-1].parts] == COMPONENTS
    assert {*run.cluster.run("squeue", "--noheader", "--format=%u").stdout.split()} == {"alice"}
    first = {f"agent-{host}" for name in COMPONENTS if name != "h20" for host in run.hosts(name)}
    assert run.agents() == Counter({*first, "agents-2"}), "a step per component, whatever its number of nodes"
    a_killed_agent_costs_the_processes_of_its_node(run)
    assert run.until_over()["state"] == "finished", run.told()
    assert [line["attempt"] for line in run.ledger()] == [1] * STEPS
    run.until(lambda: not run.run.store_root.exists(), "the end of all weights, also those of the killed relay")
    everyone_saw_its_own_gpus(run)
    the_class_ran_in_its_container(run)


def a_killed_agent_costs_the_processes_of_its_node(run: Mixed) -> None:
    """The run can't finish meanwhile: the gate of its environments is closed."""
    before, host = run.procs(), run.hosts("h20")[1]
    there = {name for name, proc in before.items() if proc.host == host}
    assert {name.partition("-")[0] for name in there} == {"engine", "relay"}, before
    (pid,) = run.cluster.run(sys.executable, "-c", AGENTS_ON, host).stdout.split()
    assert run.cluster.run("kill", "-KILL", pid).returncode == 0

    run.until(lambda: {run.num_joined(name) for name in there} == {2}, f"{there} under another agent")
    assert run.agents()[f"agent-{host}"] == 1 == run.agents()["agents-2"], "beside the step of the other node's agent"
    run.gate.unlink()
    restarted = {name for name, proc in run.procs().items() if proc.incarnation != before[name].incarnation}
    assert restarted == there, run.told()
    assert run.run.last_attempt() == 1


def everyone_saw_its_own_gpus(run: Mixed) -> None:
    (trainer_node,) = {node for node, _ in run.seen("trainer").values()}
    engines = run.seen("engine")
    assert [gpus for _, gpus in run.seen("trainer").values()] == ["0,1", "0,1"]
    assert engines["engine-fast-0"] == (trainer_node, "2"), "beside the trainer"
    assert {engines[f"engine-spare-{i}"] for i in range(2)} == {("l40s-0", "0"), ("l40s-0", "1")}
    assert {engines[f"engine-wide-{i}"] for i in range(2)} == {("h20-0", "0"), ("h20-1", "0")}
    assert len(engines) == 5 and len(run.seen("relay")) == 4
    for role in ("env", "reward", "relay"):
        assert {gpus for _, gpus in run.seen(role).values()} == {"none"}, role


def the_class_ran_in_its_container(run: Mixed) -> None:
    """Two agents, and the one that replaced the killed one."""
    notes, path = run.notes(), run.run.path
    assert len(notes) == 3 and len(read_plan(run.run).components) == len(COMPONENTS)
    for words in notes:
        options, command = words[: words.index(IMAGE)], words[words.index(IMAGE) + 1 :]
        assert options[:3] == ["exec", "--nv", "--bind"] and options[-2:] == ["--pwd", str(path)]
        bound = {mount for flag, mount in pairwise(options) if flag == "--bind"}
        own = {f"{place}:{place}" for place in (path, CHECKOUT, run.model, run.home / "tasks")}
        assert bound == {*own, "/usr/share:/data:ro"}
        assert command[0] == sys.executable and "--hardware=h20" in command
