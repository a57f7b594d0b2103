from __future__ import annotations

from rollart_hpc.config.schema import EnvConfig, PoolConfig, RewardConfig, RunConfig, TrainerConfig, WeightsConfig
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
