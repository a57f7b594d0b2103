"""Which GPUs of its node a process sees."""

from __future__ import annotations

from rollart_hpc.config.load import load, load_site
from rollart_hpc.config.schema import PoolConfig
from rollart_hpc.launch.plan import Component, make_plan


def test_ranks_of_a_node_see_each_others_gpus_and_engines_only_their_own() -> None:
    config = load("quickstart", ["trainer.ranks=4"])
    config.pools = {"compute": PoolConfig(2, tensor_parallel=2)}
    plan = make_plan(config, load_site("dev"))
    assert [(p.gpus, p.local_rank) for p in plan.of("trainer")] == [((0, 1, 2, 3), i) for i in range(4)]
    assert [p.gpus for p in plan.of("engine")] == [(4, 5), (6, 7)]
    assert {p.gpus for role in ("controller", "env", "relay") for p in plan.of(role)} == {()}


def test_every_node_counts_from_zero() -> None:
    config = load("quickstart", site="h800-h20")
    config.trainer.ranks, config.pools = 12, {"compute": PoolConfig(2, tensor_parallel=4)}
    plan = make_plan(config, load_site("h800-h20"))
    nodes = [[p for p in plan.of("trainer") if p.node == node] for node in ("h800-0", "h800-1")]
    assert [len(ranks) for ranks in nodes] == [6, 6]
    for ranks in nodes:
        assert [p.local_rank for p in ranks] == list(range(len(ranks)))
        assert {p.gpus for p in ranks} == {tuple(range(len(ranks)))}
    for component in plan.components:
        _check_disjoint(component)


def test_without_gpus_only_the_ranks_are_numbered() -> None:
    plan = make_plan(load("quickstart", ["trainer.ranks=2"]))
    assert {p.gpus for p in plan.procs} == {()}
    assert [p.local_rank for p in plan.of("trainer")] == [0, 1]


def _check_disjoint(component: Component) -> None:
    for node in component.nodes:
        there = [p for p in component.procs if p.node == node]
        trainer = {gpu for p in there if p.role == "trainer" for gpu in p.gpus}
        seen = [*trainer, *(gpu for p in there if p.role != "trainer" for gpu in p.gpus)]
        assert len(set(seen)) == len(seen) and set(seen) <= set(range(component.per_node.gpus))
