from __future__ import annotations

import pytest

from rollart_hpc.config.load import load, load_site
from rollart_hpc.config.schema import EnvConfig, PoolConfig, RewardConfig, RunConfig, TrainerConfig, WeightsConfig
from rollart_hpc.errors import UserError
from rollart_hpc.launch.packing import Needs
from rollart_hpc.launch.plan import make_plan

CONFIG = RunConfig(
    env=EnvConfig(workers=2),
    reward=RewardConfig(workers=1),
    trainer=TrainerConfig(ranks=2),
    pools={"compute": PoolConfig(1), "bandwidth": PoolConfig(2)},
)


def test_every_role_has_its_node() -> None:
    plan = make_plan(CONFIG)
    nodes = {node: [p.name for p in plan.procs if p.node == node] for node in ("cpu", "compute", "bandwidth")}
    assert nodes == {
        "cpu": ["controller", "env-0", "env-1", "reward-0"],
        "compute": ["engine-compute-0", "trainer-0", "trainer-1", "relay-compute"],
        "bandwidth": ["engine-bandwidth-0", "engine-bandwidth-1", "relay-bandwidth"],
    }
    assert [(p.rank, p.ranks) for p in plan.of("trainer")] == [(0, 2), (1, 2)]
    assert {p.pool for p in plan.of("engine")} == {"compute", "bandwidth"}
    assert len({p.name for p in plan.procs}) == len(plan.procs)


def test_direct_transport_needs_no_relays() -> None:
    assert make_plan(RunConfig(weights=WeightsConfig(transport="direct"))).of("relay") == ()


def test_a_node_without_engines_or_trainer_needs_no_relay() -> None:
    plan = make_plan(RunConfig(pools={"compute": PoolConfig(0), "bandwidth": PoolConfig(0)}))
    assert [p.name for p in plan.of("relay")] == ["relay-compute"]


# --- on a cluster ------------------------------------------------------------------------------


def test_a_component_for_each_hardware_class_cpu_first() -> None:
    plan = make_plan(CONFIG, load_site("dev"))
    assert [(c.index, c.hardware, c.partition, c.nodes) for c in plan.components] == [
        (0, "cpu", "cpu", ("cpu-0",)),
        (1, "h800", "h800", ("h800-0",)),
        (2, "h20", "h20", ("h20-0",)),
    ]
    cpu, h800, h20 = plan.components
    assert [p.name for p in cpu.procs] == ["controller", "env-0", "env-1", "reward-0"]
    assert [p.name for p in h20.procs] == ["engine-bandwidth-0", "engine-bandwidth-1", "relay-h20-0"]
    assert [p.name for p in h800.procs] == ["trainer-0", "trainer-1", "engine-compute-0", "relay-h800-0"]
    assert cpu.per_node == Needs(1 + 4, 0, 1.0 + 4.0)  # the supervisor has its share
    assert (h20.per_node, h800.per_node) == (Needs(3, 2, 5.0), Needs(4, 3, 7.0))
    assert all(p.node in plan.component_of(p.node).nodes for p in plan.procs)
    assert set(plan.procs) == {p for c in plan.components for p in c.procs}
    assert (plan.time_minutes, plan.gpu_hours, plan.cost) == (120, 10.0, 2 * (2 * 1.0 + 3 * 2.85))


def test_one_class_is_one_component() -> None:
    plan = make_plan(load("quickstart"), load_site("single"))
    (component,) = plan.components
    assert component.nodes == ("gpu-0",) and component.num_gpus == 3
    assert [p.name for p in plan.of("relay")] == ["relay-gpu-0"]
    assert {p.hardware for p in plan.procs} == {"gpu"}


def test_engines_and_ranks_spread_over_nodes_with_a_relay_each() -> None:
    pools = {"compute": PoolConfig(8, tensor_parallel=8), "bandwidth": PoolConfig(16, tensor_parallel=2)}
    config = load("quickstart", site="h800-h20")
    config.trainer.ranks, config.pools = 32, pools
    plan = make_plan(config, load_site("h800-h20"))
    _, h800, h20 = plan.components
    assert (len(h800.nodes), h800.num_gpus, len(h20.nodes), h20.num_gpus) == (12, 96, 4, 32)
    assert [p.node for p in plan.of("trainer")] == [f"h800-{i // 8}" for i in range(32)]
    relays = [p.node for p in plan.of("relay")]
    assert relays == ["h800-0", *(f"h800-{i}" for i in range(4, 12)), *(f"h20-{i}" for i in range(4))]
    assert all(p.needs.gpus == {"compute": 8, "bandwidth": 2}[p.pool] for p in plan.of("engine"))


def test_the_time_limit_is_the_smallest() -> None:
    site = load_site("dev")
    config = load("quickstart", ["job.time_minutes=30"])
    assert make_plan(config, site).time_minutes == 30
    site.classes["h20"].max_minutes = 10
    assert make_plan(config, site).time_minutes == 10
    for own in site.classes.values():
        own.max_minutes = 0
    config.job.time_minutes = 0
    with pytest.raises(UserError, match="no time limit"):
        make_plan(config, site)


def test_a_time_limit_leaves_time_to_train_before_the_checkpoint() -> None:
    site = load_site("dev")
    assert make_plan(load("quickstart", ["job.time_minutes=4"]), site).time_minutes == 4
    with pytest.raises(UserError) as caught:
        make_plan(load("quickstart", ["job.time_minutes=30", "job.signal_s=1800"]), site)
    assert "job.signal_s = 1800 s" in caught.value.what and "request 32 min" in caught.value.fix


def test_processes_get_whole_cores() -> None:
    """A step of a job has whole cores: with fewer in all the last one would wait for ever."""
    site = load_site("dev")
    for own in site.classes.values():
        own.threads_per_core = 2
    plan = make_plan(load("quickstart", ["trainer.cpus=3", "engine.cpus=2"]), site)
    cpu, h800, h20 = plan.components
    assert {p.name: p.needs.cpus for p in h800.procs} == {"trainer-0": 4, "engine-compute-0": 2, "relay-h800-0": 2}
    for component, supervisor in ((cpu, 2), (h800, 0), (h20, 0)):
        assert component.per_node.cpus == supervisor + sum(p.needs.cpus for p in component.procs)


def test_impossible_needs_say_what_would_fit() -> None:
    with pytest.raises(UserError) as caught:
        make_plan(load("quickstart", ["pools.bandwidth.tensor_parallel=16"]), load_site("dev"))
    assert "engine-bandwidth-0 needs 1 CPUs, 16 GPUs" in caught.value.what and "8 GPUs" in caught.value.fix
    with pytest.raises(UserError) as caught:
        make_plan(load("quickstart", ["trainer.ranks=40"]), load_site("dev"))
    assert "needs 6 nodes of class h800 (partition h800), but a job may have 2" in caught.value.what
    assert "of 40 trainer" in caught.value.fix


def test_on_cpu_devices_no_gpu_is_asked_for() -> None:
    plan = make_plan(load("quickstart", ["engine.device=cpu", "trainer.device=cpu"]), load_site("dev"))
    assert plan.gpu_hours == 0 and {p.needs.gpus for p in plan.procs} == {0}
