"""The design's invariants under random faults, in virtual time, on the core that runs the cluster."""

from __future__ import annotations

import os
import random
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollart_hpc.config.modes import Mode, preset_of
from rollart_hpc.flow.rules import FlowRules, TaskRules
from rollart_hpc.flow.state import State
from rollart_hpc.simulate.world import Durations, Member, World

EXAMPLES = int(os.environ.get("ROLLART_FAULT_RUNS", "2000"))


def under(mode: str, **asked: int) -> dict[str, int]:
    """What a run of that mode means by what it asked for."""
    preset = preset_of(mode)
    return {**asked, **preset.forced, **preset.switches}


MODES = {str(mode): under(mode, alpha=2, redundancy=1) for mode in Mode} | {
    "rollart_2": under("rollart", alpha=2, redundancy=2, redundant_groups=1),
    "rollart_1": under("rollart", alpha=1, redundancy=1),
    "rollart_0": under("rollart", alpha=0, redundancy=1, redundant_groups=2),
    "in_order": under("rollart", alpha=0, in_order=True),
}


def members(num_engines: int, num_envs: int, num_rewards: int, kv_tokens: int, has_third: bool) -> list[Member]:
    cast = [
        Member("trainer-0", "trainer", "n0", capacity=1),
        Member("relay-n0", "relay"),
        Member("relay-n1", "relay", "n1"),
    ]
    cast += [Member(f"engine-c{i}", "engine", "n0", "compute", 6, kv_tokens) for i in range(num_engines)]
    cast += [Member(f"engine-b{i}", "engine", "n1", "bandwidth", 6, kv_tokens, 2.0) for i in range(num_engines)]
    cast += [Member("engine-t", "engine", "n1", "third", 4, kv_tokens, 0.5)] if has_third else []
    cast += [Member(f"env-{i}", "env", capacity=10) for i in range(num_envs)]
    cast += [Member(f"reward-{i}", "reward", capacity=4) for i in range(num_rewards)]
    return cast


def check_admission(world: World, event: object) -> None:
    rules = world.rules
    bound = (1 + rules.alpha) * rules.groups_per_step + rules.redundant_groups
    assert len(world.core.groups) <= bound, "more groups admitted than the bound"


def check_credits(world: World, event: object) -> None:
    core = world.core
    on_env = Counter(t.env for t in core.trajectories.all.values() if t.env)
    on_engine = Counter(t.server for t in core.trajectories.requests.values())
    for worker in core.workers.values():
        assert 0 <= worker.load <= worker.capacity or worker.role in ("relay", "trainer"), worker
        if worker.role == "env":
            assert worker.load == on_env[worker.name], worker
        if worker.role == "engine":
            assert worker.load == on_engine[worker.name], worker
            held = [t for t in core.trajectories.all.values() if worker.name in (t.engine, t.prefiller)]
            assert {t.id for t in held} == set(worker.trajectories), worker
            assert worker.held_tokens == sum(t.footprint for t in held), worker
            running = [t for t in core.trajectories.requests.values() if t.server == worker.name]
            assert not worker.kv_tokens or worker.load <= 1 or worker.running_tokens <= worker.kv_tokens, worker
            assert worker.running_tokens == sum(t.turn_tokens for t in running), worker


def check_no_orphans(world: World, event: object) -> None:
    """Whatever is not scored waits for something that can still happen."""
    core = world.core
    for trajectory in core.trajectories.all.values():
        assert trajectory.state is not State.GONE
        if trajectory.group is not None:
            assert core.groups.get(trajectory.group.id) is trajectory.group


def check_barrier(world: World, event: object) -> None:
    """Only one batch at a time is generated."""
    versions = {group.admitted_version for group in world.core.groups.values() if not group.complete}
    assert not world.rules.barrier or len(versions) <= 1, versions


def surviving(world: World) -> list:
    """The chain of committed steps that leads to the final weights: for each version the last line written."""
    chain = {}
    for line in world.ledger:
        chain = {v: old for v, old in chain.items() if v < line.version}
        chain[line.version] = line
    return [chain[v] for v in sorted(chain)]


def check_ledger(world: World) -> None:
    chain = surviving(world)
    assert [line.version for line in chain] == list(range(1, world.rules.steps + 1)), "exactly the steps asked for"
    trained = Counter(t for line in chain for t in line.trajectories)
    assert max(trained.values(), default=1) == 1, "a trajectory trained twice"
    for line in chain:
        step = line.version - 1
        assert line.sizes == [world.rules.group_size] * world.rules.groups_per_step
        assert all(step - world.rules.alpha <= v <= step for v in line.start_versions), line


def make_world(mode: str, seed: int, failure_rate: float, direct: bool, plays: int) -> World:
    rng = random.Random(seed)
    has_third = rng.random() < 0.5  # a third pool, of the same profile as the first
    compute = ("compute", "third") if has_third else ("compute",)
    rules = FlowRules(
        tasks={
            "a": TaskRules(1.0, compute),
            "b": TaskRules(2.0, ("bandwidth",), "same_reward"),
            "c": TaskRules(0.5),
        },
        steps=rng.randint(1, 5),
        groups_per_step=rng.randint(1, 5),
        group_size=rng.randint(1, 3),
        direct=direct,
        awaited=frozenset({*compute, "bandwidth"}),
        prefill_pools=compute,
        validation_plays=plays,
        validation_every=rng.choice([0, 2]),
        checkpoint_every=rng.choice([0, 1, 2]),
        quarantine_after=1000,
        **MODES[mode],
    )
    if not rules.install_idle and rng.random() < 0.5:
        rules.tasks["c"] = TaskRules(0.5, split=True)
    elif has_third:
        rules.tasks["c"] = TaskRules(0.5, ("third",))
    if rules.group_size == 1:
        rules.tasks["b"] = TaskRules(2.0, ("bandwidth",))
    world = World(
        rules,
        members(rng.randint(1, 2), rng.randint(1, 2), rng.randint(1, 2), rng.choice([0, 60, 200]), has_third),
        seed,
        Durations(failure_rate=failure_rate),
    )
    world.checks += [check_admission, check_credits, check_no_orphans, check_barrier]
    for member in world.members:
        world.after(rng.uniform(0, 1), lambda name=member.name: world.start(name))
    return world


FAULT = st.tuples(st.floats(0.0, 12.0, allow_subnormal=False), st.integers(0, 99), st.floats(0.01, 3.0))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    mode=st.sampled_from(sorted(MODES)),
    seed=st.integers(0, 2**32),
    failure_rate=st.sampled_from([0.0, 0.02, 0.1]),
    direct=st.booleans(),
    plays=st.sampled_from([0, 3]),
    faults=st.lists(FAULT, max_size=8),
    breaks=st.lists(st.tuples(st.floats(0.5, 10.0), st.integers(0, 99)), max_size=4),
    controller_dies=st.lists(st.floats(0.5, 10.0), max_size=2),
)
def test_invariants_hold_under_random_faults(mode, seed, failure_rate, direct, plays, faults, breaks, controller_dies):
    world = make_world(mode, seed, failure_rate, direct, plays)
    for when, who, back in faults:
        name = world.members[who % len(world.members)].name
        world.after(when, lambda name=name, back=back: world.kill(name, back))
    for when, who in breaks:
        name = world.members[who % len(world.members)].name
        world.after(when, lambda name=name: world.reconnect(name))
    for when in controller_dies:
        world.after(when, world.kill_controller)
    ended = world.run(until_s=2000.0)
    assert ended == "finished", (
        f"no progress: {world.core.trajectories.num_playing} playing, version {world.core.version}"
    )
    check_ledger(world)
    assert world.core.tally.stray_requests == 0
    assert max(world.core.tally.staleness, default=0) <= world.rules.alpha
    if plays:
        assert world.core.validator.has(0) and world.core.validator.has(world.rules.steps)
