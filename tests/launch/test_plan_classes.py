"""Plans with several hardware classes: who goes where, quotas, whole nodes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.config.load import load, load_site
from rollart_hpc.config.schema import JobConfig, PoolConfig, RunConfig, TaskConfig, TrainerConfig
from rollart_hpc.config.site import HardwareClass, SiteConfig
from rollart_hpc.errors import UserError
from rollart_hpc.launch.packing import Needs
from rollart_hpc.launch.plan import Plan, make_plan
from rollart_hpc.launch.summary import plan_lines


def test_the_packaged_example() -> None:
    plan = make_plan(load("three-classes"), load_site("three-classes"))
    where = {c.hardware: Counter(p.role for p in c.procs) for c in plan.components}
    assert [c.hardware for c in plan.components] == ["fat.cpu", "h800", "h20", "l40s", "io-cpu_2"]
    assert where["fat.cpu"] == {"controller": 1} and where["io-cpu_2"] == {"env": 2, "reward": 1}
    assert plan.classes_of("wide") == {"h20": 2, "l40s": 1} and plan.classes_of("spare") == {"l40s": 1}
    assert plan.partitions_of("wide") == "h20, l40s"
    assert {pool.name: (pool.profile, pool.tasks) for pool in plan.pools} == {
        "fast": ("compute", ("frozenlake", "letters")),
        "wide": ("bandwidth", ("sorting", "letters")),
        "spare": ("compute", ("frozenlake", "letters")),
    }
    l40s = plan.components[3]
    assert l40s.is_whole and l40s.per_node == Needs(16, 4, 31.0) and l40s.cost_per_hour == pytest.approx(4 * 0.6)
    text = "\n".join(plan_lines(plan))
    assert "1 whole  16 CPUs, 4 GPUs, 31 GB" in text and "GPU quota: h20 2 of 2" in text
    assert "wide   bandwidth  2 h20, 1 l40s  1          sorting, letters" in text


def test_on_one_machine_every_pool_is_a_node_and_the_trainer_shares_that_of_its_class() -> None:
    plan = make_plan(load("three-classes", site="local"))
    assert {p.node for p in plan.procs} == {"cpu", "fast", "wide", "spare"} and plan["trainer-0"].node == "fast"
    plan = make_plan(load("three-classes", ["trainer.class=h100"], "local"))
    assert plan["trainer-0"].node == "h100" and "relay-h100" in {p.name for p in plan.procs}


def test_trainer_and_compute_engines_on_different_classes() -> None:
    plan = make_plan(load("quickstart", ["trainer.class=h20", "controller.class=h800"]), load_site("dev"))
    assert [c.hardware for c in plan.components] == ["h800", "h20", "cpu"], "the controller's class is the first"
    assert {p.name for p in plan.components[0].procs} == {"controller", "engine-compute-0", "relay-h800-0"}
    assert plan["trainer-0"].hardware == "h20" and plan["env-0"].hardware == "cpu"
    assert plan.components[0].per_node.cpus == 1 + 1 + 1 + 1, "and its first node has the supervisor"


def test_a_pool_fills_one_class_after_the_other() -> None:
    site = load_site("dev")  # 16 h800 in two nodes, 16 h20
    config = load("quickstart", ["trainer.ranks=4"])
    config.pools = {
        "all": PoolConfig(5, tensor_parallel=4, class_=["h800", "h20"]),
        "own": PoolConfig(8, class_=["h20"]),
    }
    plan = make_plan(config, site)
    assert plan.classes_of("all") == {"h800": 3, "h20": 2}, "the trainer has four h800, the other pool eight h20"
    assert plan["engine-all-2"].hardware == "h800" and plan["engine-all-3"].hardware == "h20"


def test_classes_that_are_full_say_how_much_they_hold() -> None:
    config = load("quickstart")
    config.pools = {"all": PoolConfig(9, tensor_parallel=4, class_=["h800", "h20"])}
    with pytest.raises(UserError) as caught:
        make_plan(config, load_site("dev"))
    assert caught.value.what == "pools.all: its classes have room for 7 of 9 engines: 3 in h800, 4 in h20"


def test_a_class_that_gets_nothing_is_no_component() -> None:
    config = load("quickstart")
    config.pools = {"all": PoolConfig(2, class_=["h800", "h20"])}
    assert [c.hardware for c in make_plan(config, load_site("dev")).components] == ["cpu", "h800"]


def test_a_quota_is_a_limit() -> None:
    site = load_site("dev")
    site.classes["h20"].max_gpus = 3
    assert make_plan(load("quickstart", ["pools.bandwidth.engines=3"]), site).components[2].num_gpus == 3
    with pytest.raises(UserError) as caught:
        make_plan(load("quickstart", ["pools.bandwidth.engines=4"]), site)
    assert "asks for 4 GPUs of class h20 (partition h20)" in caught.value.what and "max_gpus is 3" in caught.value.what


@pytest.mark.parametrize("how", ["class", "site", "run"])
def test_whole_nodes_are_counted_whole(how: str) -> None:
    site, config = load_site("dev"), load("quickstart")
    if how == "class":
        for own in site.classes.values():
            own.whole_nodes = True
    elif how == "site":
        site.sbatch = {"exclusive": True}
    else:
        config.job = JobConfig(sbatch={"exclusive": True})
    plan = make_plan(config, site)
    assert {c.hardware: (c.num_gpus, c.num_cpus) for c in plan.components} == {
        "cpu": (0, 16), "h800": (8, 16), "h20": (8, 16),
    }  # fmt: skip
    hours = plan.time_minutes / 60
    assert plan.gpu_hours == 16 * hours and plan.cost == pytest.approx(hours * 8 * (2.85 + 1.0))
    site.sbatch, config.job.sbatch = {"exclusive": "user"}, {}
    if how != "class":
        assert make_plan(config, site).gpu_hours == 3 * hours, "other values share the nodes"


# --- any site, any run -------------------------------------------------------------------------

NAMES = ["a", "b", "c", "d"]
CLASS = st.builds(
    HardwareClass,
    partition=st.just("p"),
    gpus=st.sampled_from([0, 4, 8]),
    cpus=st.sampled_from([16, 64]),
    memory_gb=st.sampled_from([0.0, 64.0]),
    threads_per_core=st.sampled_from([1, 2]),
    max_nodes=st.sampled_from([0, 1, 3]),
    max_gpus=st.sampled_from([0, 8]),
    whole_nodes=st.booleans(),
)
SITES = st.builds(
    lambda classes: SiteConfig(launcher="slurm", classes=classes),
    st.fixed_dictionaries(dict.fromkeys(NAMES, CLASS)),
)
HOME = st.sampled_from(NAMES)
POOL = st.builds(
    PoolConfig,
    engines=st.integers(0, 9),
    tensor_parallel=st.sampled_from([1, 2, 4]),
    class_=st.lists(HOME, min_size=1, max_size=3, unique=True),
)


@st.composite
def runs(draw: st.DrawFn) -> RunConfig:
    pools = draw(st.dictionaries(st.sampled_from(["x", "y", "z"]), POOL, min_size=1))
    config = RunConfig(pools=pools, tasks={"t": TaskConfig()}, trainer=TrainerConfig(ranks=draw(st.integers(1, 9))))
    config.job.time_minutes = 60
    for role in (config.controller, config.trainer, config.env, config.reward):
        role.class_ = draw(HOME)
    return config


@settings(max_examples=300, deadline=None)
@given(runs(), SITES)
def test_every_plan_keeps_every_limit(config: RunConfig, site: SiteConfig) -> None:
    try:
        plan = make_plan(config, site)
    except UserError as error:
        assert error.fix
        return
    check_limits(plan, site)
    assert plan.components[0].hardware == config.controller.class_
    assert len(plan.of("trainer")) == config.trainer.ranks
    for name, pool in config.pools.items():
        split = plan.classes_of(name)
        assert sum(split.values()) == pool.engines and set(split) <= set(pool.class_)
        assert list(split) == [c.hardware for c in plan.components if c.hardware in split]


def check_limits(plan: Plan, site: SiteConfig) -> None:
    for index, component in enumerate(plan.components):
        own = site.classes[component.hardware]
        assert component.index == index
        assert not own.max_nodes or len(component.nodes) <= own.max_nodes
        assert not own.max_gpus or component.num_gpus <= own.max_gpus
        assert component.per_node.fits(Needs(own.cpus, own.gpus, own.memory_gb))
        if own.whole_nodes:
            assert component.per_node == Needs(own.cpus, own.gpus, own.memory_gb)
        for node in component.nodes:
            there = [p for p in component.procs if p.node == node]
            used = sum((p.needs for p in there), Needs())
            assert there and used.cpus <= component.per_node.cpus and used.gpus <= component.per_node.gpus
            assert all(set(p.gpus) <= set(range(component.per_node.gpus)) for p in there)
            weights = any(p.role == "engine" or p.name == "trainer-0" for p in there)
            assert weights == any(p.role == "relay" for p in there)
