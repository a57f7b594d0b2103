"""The job steps of the agents: how many a large run needs, and what a container adds to them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rollart_hpc.config.load import load, load_site
from rollart_hpc.config.schema import PoolConfig, RunConfig
from rollart_hpc.config.site import ContainerConfig, HardwareClass, SiteConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.launch.plan import Plan, make_plan
from rollart_hpc.launch.process import Order
from rollart_hpc.launch.slurm import agent_steps
from rollart_hpc.launch.slurm.agent_steps import AgentSteps
from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.script import render_script
from rollart_hpc.launch.slurm.step import SrunStep
from rollart_hpc.rundir import RunDir

LATER_S = 60.0  # later than any delay before a restart
GPUS_PER_NODE = 8
NODES = {"train": 62, "wide": 250, "spare": 63}  # 375 nodes, 3,000 GPUs, about 1:5 for training and generation

Sruns = list[tuple[str, list[str]]]


class FakeStep(SrunStep):
    is_over = False

    def has_ended(self) -> bool:
        return self.is_over

    def reap(self, timeout_s: float = 30.0) -> int:
        return 1


@pytest.fixture
def sruns(monkeypatch: pytest.MonkeyPatch) -> Sruns:
    """Names and words of the sruns that would be started."""
    started: Sruns = []

    def start(order: Order, command: list[str], environment: dict[str, str], *, kind: type[SrunStep]) -> SrunStep:
        started.append((order.proc.name, command))
        return FakeStep(order, None, -1)  # type: ignore[arg-type]

    monkeypatch.setattr(agent_steps, "start_child", start)
    return started


def open_steps(run: RunDir, config: RunConfig, plan: Plan, site: SiteConfig) -> AgentSteps:
    """On hosts of one name each, as if Slurm had granted the plan."""
    hosts = {node: f"host-{node}" for component in plan.home for node in component.nodes}
    allocation = Allocation(7, tuple(range(7, 7 + len(plan.home))), hosts, 0)
    steps = AgentSteps(run, config, plan, site, allocation, lambda _: None)
    steps.open()
    return steps


def large() -> tuple[RunConfig, SiteConfig]:
    site = SiteConfig(name="large", launcher="slurm", mpi="pmi2", serves={"cpu": "many-cpus", "compute": "train"})
    site.classes = {
        name: HardwareClass(partition=name, gres="g", gpus=GPUS_PER_NODE, cpus=128, memory_gb=1900.0, max_nodes=count)
        for name, count in NODES.items()
    }
    site.classes["many-cpus"] = HardwareClass(partition="many-cpus", cpus=128, memory_gb=480.0)
    config = load("quickstart", ["weights.collective=mpi", "env.workers=200"])
    config.trainer.ranks = NODES["train"] * GPUS_PER_NODE
    config.pools = {
        name: PoolConfig(NODES[name] * GPUS_PER_NODE, class_=[name], profile=profile)
        for name, profile in (("wide", "bandwidth"), ("spare", "compute"))
    }
    return config, site


def test_a_run_on_three_thousand_gpus_needs_an_srun_per_component(tmp_path: Path, sruns: Sruns) -> None:
    config, site = large()
    plan, run = make_plan(config, site), RunDir(tmp_path / "run")
    script = render_script(plan, config, site, run)
    assert sum(len(c.nodes) * c.per_node.gpus for c in plan.components) == 3000
    assert [script.count(f"#SBATCH --partition={name}") for name in site.classes] == [1] * len(site.classes)
    assert {f"#SBATCH --nodes={count}" for count in NODES.values()} < set(script.splitlines())

    open_steps(run, config, plan, site)
    assert [name for name, _ in sruns] == [f"agents-{component.index}" for component in plan.components]
    assert len(sruns) + 1 < 20, "and one for the MPI world of relays"
    for component, (_, words) in zip(plan.components, sruns, strict=True):
        assert f"--ntasks={len(component.nodes)}" in words and f"--het-group={component.index}" in words
        assert words.count(f"--gres=gpu:g:{GPUS_PER_NODE}") == (component.hardware in NODES)
        assert "--gpu-bind=none" in words or component.hardware not in NODES
    ranks, engines = plan.of("trainer"), plan.of("engine")
    assert {proc.gpus for proc in ranks} == {tuple(range(GPUS_PER_NODE))}, "every rank sees those of all its node"
    seen = [(proc.node, gpu) for proc in engines for gpu in proc.gpus]
    assert len(seen) == len(set(seen)) == (NODES["wide"] + NODES["spare"]) * GPUS_PER_NODE


def test_pyxis_is_told_by_the_srun_of_the_class_that_has_it(tmp_path: Path, sruns: Sruns) -> None:
    config, site, run = load("quickstart"), load_site("dev"), RunDir(tmp_path / "a run")
    site.classes["h20"].container = ContainerConfig("pyxis", "nvcr.io#nvidia/pytorch:25.01", ["/data:/d:ro"])
    open_steps(run, config, make_plan(config, site), site)
    (inside,) = (words for _, words in sruns if "--hardware=h20" in words)
    outside = [word for _, words in sruns if "--hardware=h20" not in words for word in words]
    command = inside.index("python3")  # the image's
    assert "--container-image=nvcr.io#nvidia/pytorch:25.01" in inside[:command]
    assert f"--container-workdir={run.path}" in inside[:command]
    mounts = next(word for word in inside if word.startswith("--container-mounts="))
    assert f"{run.path}:{run.path}," in mounts and mounts.endswith(",/data:/d:ro")
    assert not [word for word in outside if word.startswith("--container")] and "python3" not in outside


def test_an_agent_that_does_not_come_is_replaced_until_its_budget_is_used_up(tmp_path: Path, sruns: Sruns) -> None:
    config, site, run = load("quickstart"), load_site("dev"), RunDir(tmp_path / "run")
    steps = open_steps(run, config, make_plan(config, site), site)
    came, failed, silent = (name.removeprefix("agent-") for name, _ in sruns)
    steps.came(came)
    for step in steps.running:
        step.is_over = step.name != f"agent-{silent}"
    now = time.monotonic()
    for _ in range(2):  # notices it, then starts another
        steps.tick(now + LATER_S)
    assert [name for name, _ in sruns[3:]] == [f"agent-{failed}"], "whose srun ended; the other may still come"
    for _ in range(2):
        steps.tick(now + config.timeouts.start_s + 2 * LATER_S)
    assert {name for name, _ in sruns[4:]} == {f"agent-{failed}", f"agent-{silent}"}
    with pytest.raises(SiteError, match=r"keeps failing and has used up restarts.per_role") as caught:
        for tick in range(2, 20):
            steps.tick(now + tick * (config.timeouts.start_s + LATER_S))
    assert caught.value.fix == f"read its log: {run.job_logs}"


def test_an_agent_whose_connection_breaks_again_and_again_uses_up_no_restarts(tmp_path: Path, sruns: Sruns) -> None:
    config, site, run = load("quickstart"), load_site("dev"), RunDir(tmp_path / "run")
    steps = open_steps(run, config, make_plan(config, site), site)
    hosts = [name.removeprefix("agent-") for name, _ in sruns]
    for host in hosts:
        steps.came(host)
    for _ in range(3 * config.restarts.per_role):
        steps.lost(hosts[0])
        steps.came(hosts[0])  # the same one, over a new connection
    steps.tick(time.monotonic() + LATER_S)
    assert len(sruns) == len(hosts), "no second agent for a node that has one"
    for _ in range(config.restarts.per_role):
        steps.lost(hosts[0])
    with pytest.raises(SiteError):
        steps.lost(hosts[0])


def test_the_end_of_a_step_tells_that_its_agent_is_gone(tmp_path: Path, sruns: Sruns) -> None:
    """Without it, only the agent's silence would."""
    config, site, run = load("quickstart"), load_site("dev"), RunDir(tmp_path / "run")
    steps = open_steps(run, config, make_plan(config, site), site)
    came, failed, _ = (name.removeprefix("agent-") for name, _ in sruns)
    steps.came(came)
    now = time.monotonic()
    assert steps.tick(now) == []
    first = next(step for step in steps.running if step.name == f"agent-{came}")
    for step in steps.running:
        step.is_over = step.name in (f"agent-{came}", f"agent-{failed}")  # type: ignore[attr-defined]
    assert steps.tick(now) == [came], "the other one has never come"
    steps.lost(came)
    steps.tick(now + LATER_S)
    steps.came(came)
    assert first not in steps.running and steps.tick(now + LATER_S) == [], "it has a step of its own again"
