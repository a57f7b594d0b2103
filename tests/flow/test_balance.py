"""The core in virtual time: how trajectories lie on engines. A scenario per way in which routing can go wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.rules import FlowRules, TaskRules
from rollart_hpc.flow.state import Worker
from rollart_hpc.simulate.world import Durations, Member, World
from rollart_hpc.types import WeightsId
from tests.flow.scene import Scene

SLOW_PUSH = Durations(
    reset=lambda r: r.uniform(0.5, 2.0),
    turn=lambda r: r.uniform(0.2, 1.0),
    generate=lambda r: r.expovariate(0.7),
    score=lambda r: r.uniform(0.01, 0.1),
    train=lambda r: 6.0,
    transfer=lambda r: r.uniform(0.5, 3.0),  # each engine has a new version at another time
    turns=lambda r: r.randint(3, 8),
)
SETTLED_S = 3.0  # some two turns
SAMPLES = 10


def cluster(num_engines: int, capacity: int, speeds: Callable[[int], float] = lambda i: 1.0) -> World:
    """One pool, and eight times as many trajectories as its engines have credits."""
    rules = FlowRules(
        tasks={"a": TaskRules(1.0, ("compute",))},
        steps=4,
        groups_per_step=num_engines * capacity,
        group_size=4,
        awaited=frozenset({"compute"}),
        quarantine_after=1_000_000,
    )
    members = [Member("trainer-0", "trainer", "t"), Member("relay-t", "relay", "t")]
    for i in range(num_engines):
        node = f"n{i // 8}"
        members.append(Member(f"engine-{i}", "engine", node, "compute", capacity, speed=speeds(i)))
        if i % 8 == 0:
            members.append(Member(f"relay-{node}", "relay", node))
    members += [Member(f"env-{i}", "env", capacity=num_engines) for i in range(8 * capacity)]
    members += [Member(f"reward-{i}", "reward", capacity=64) for i in range(4)]
    return World(rules, members, seed=num_engines, durations=SLOW_PUSH)


def occupancies(world: World) -> list[list[float]]:
    """Of all engines, after the last of them has installed a version, while trajectories wait for a place.

    Means over some turns: a trajectory that has just ended is not a bad choice of the router.
    """
    seen: list[list[float]] = []
    installed: dict[int, set[str]] = {}

    def see(samples: list[list[float]]) -> None:
        router = world.core.router
        if router.num_waiting == 0:
            return
        samples.append([len(e.trajectories) / e.speed for e in router.engines.values()])
        if len(samples) == SAMPLES:
            seen.append([sum(each) / SAMPLES for each in zip(*samples, strict=True)])

    def look(world: World, event: object) -> None:
        if not isinstance(event, ev.Installed):
            return
        engines = world.core.router.engines
        done = installed.setdefault(event.weights.version, set())
        done.add(event.engine)
        if len(done) == len(engines) and event.weights.version > 0:
            samples: list[list[float]] = []
            for i in range(SAMPLES):
                world.after(SETTLED_S + 0.2 * i, lambda: see(samples))

    world.checks.append(look)
    for member in world.members:
        world.start(member.name)
    assert world.run(until_s=10_000.0) == "finished"
    return seen


def check_level(seen: list[float]) -> None:
    mean = sum(seen) / len(seen)
    assert max(seen) - mean <= max(1.0, 0.1 * mean), sorted(seen)


@pytest.mark.parametrize(("num_engines", "capacity"), [(4, 8), (4, 32), (16, 4), (16, 16), (64, 8), (400, 2)])
def test_engines_are_level_after_every_install(num_engines: int, capacity: int):
    seen = occupancies(cluster(num_engines, capacity))
    assert len(seen) >= 2
    for each in seen:
        check_level(each)


@pytest.mark.parametrize(("num_engines", "capacity"), [(4, 32), (16, 8), (64, 8), (400, 2)])
def test_engines_of_other_speed_hold_as_much_more(num_engines: int, capacity: int):
    seen = occupancies(cluster(num_engines, capacity, speeds=lambda i: 3.0 if i % 4 == 0 else 1.0))
    assert len(seen) >= 2
    for each in seen:
        check_level(each)


def many(num_engines: int, **more: int) -> Scene:
    engines = tuple((f"e{i}", "compute") for i in range(num_engines))
    return Scene(engines=engines, groups_per_step=16, group_size=2, **more)


def held(scene: Scene) -> dict[str, int]:
    return {name: len(engine.trajectories) for name, engine in scene.core.router.engines.items()}


def next_version(scene: Scene, *installed: str) -> None:
    """Finish step 0; of version 1 only these engines have it yet."""
    scene.do(ev.BatchWanted(0))
    groups = scene.groups()
    for play in [p for group in groups[:16] for p in group]:
        scene.finish(play)
    for group in groups[16:]:
        scene.turn(group[0])
    scene.do(ev.Committed(1), ev.Published(WeightsId(1, 1)))
    scene.do(*(ev.Installed(name, WeightsId(1, 1)) for name in installed))


def want_turns(scene: Scene) -> None:
    scene.take(ev.Generate)
    scene.do(*(ev.TurnWanted(play.trajectory, 0, 0) for play in scene.take(ev.Play)))


def test_the_first_engine_with_a_new_version_takes_its_share_and_no_more():
    scene = many(4)
    next_version(scene, "e0")
    before = held(scene)
    want_turns(scene)
    total = sum(before.values()) + 32
    assert held(scene)["e0"] == total // 4
    assert {name: n for name, n in held(scene).items() if name != "e0"} == {n: before[n] for n in ("e1", "e2", "e3")}
    scene.do(*(ev.Installed(name, WeightsId(1, 1)) for name in ("e1", "e2", "e3")))
    assert set(held(scene).values()) == {total // 4}


def test_an_engine_that_never_installs_does_not_keep_its_share_for_ever():
    scene = many(2)
    next_version(scene, "e0")
    want_turns(scene)
    waiting = 32 - len(scene.take(ev.Generate))
    assert waiting > 0
    scene.do(ev.Tick(1.0), ev.Tick(1000.0))
    assert len(scene.take(ev.Generate)) == waiting
    assert scene.core.router.engines["e1"].installed == WeightsId(1, 0)


def test_a_lost_engine_leaves_its_share_to_the_others():
    scene = many(2)
    next_version(scene, "e0")
    want_turns(scene)
    scene.take(ev.Generate)
    scene.do(ev.Lost("e1"))
    assert {request.engine for request in scene.take(ev.Generate)} == {"e0"}


def with_kv(scene: Scene, **kv_tokens: int) -> Scene:
    for name, tokens in kv_tokens.items():
        scene.core.router.engines[name].kv_tokens = tokens
    return scene


def test_no_engine_holds_more_than_its_kv_has_room_for():
    scene = with_kv(many(2), e0=1000, e1=300)
    for play in scene.take(ev.Play):
        scene.do(ev.TurnWanted(play.trajectory, 0, 0, num_tokens=60, max_new_tokens=40))
    assert held(scene) == {"e0": 10, "e1": 3}
    request = next(r for r in scene.take(ev.Generate) if r.engine == "e1")
    scene.do(ev.Generated(request.request, 0, 0), ev.Ended(request.trajectory, 0, None, 1))
    assert [r.engine for r in scene.take(ev.Generate)] == ["e1"], "what ended makes room for one that waits"


def test_a_trajectory_that_grows_waits_until_its_engine_has_room_for_its_turn():
    scene = with_kv(many(1), e0=250)
    first, second = scene.take(ev.Play)[:2]
    for play in (first, second):
        scene.do(ev.TurnWanted(play.trajectory, 0, 0, num_tokens=60, max_new_tokens=40))
    one, two = scene.take(ev.Generate)
    scene.do(ev.Generated(one.request, 0, 0))
    scene.do(ev.TurnWanted(first.trajectory, 0, 1, num_tokens=160, max_new_tokens=40))
    assert not scene.take(ev.Generate), "100 tokens run, 200 more don't fit"
    scene.do(ev.Generated(two.request, 0, 0))
    assert [r.trajectory for r in scene.take(ev.Generate)] == [first.trajectory]


def test_what_can_never_fit_goes_to_an_empty_engine_which_says_so():
    scene = with_kv(many(1), e0=100)
    play = scene.take(ev.Play)[0]
    scene.do(ev.TurnWanted(play.trajectory, 0, 0, num_tokens=500, max_new_tokens=40))
    assert len(scene.take(ev.Generate)) == 1


def test_the_usual_length_of_a_task_is_set_aside():
    scene = with_kv(many(1), e0=1000)
    plays = scene.take(ev.Play)
    scene.do(ev.TurnWanted(plays[0].trajectory, 0, 0, num_tokens=500, max_new_tokens=0))
    (request,) = scene.take(ev.Generate)
    scene.do(ev.Generated(request.request, 0, 0), ev.Ended(plays[0].trajectory, 0, None, 1))
    for play in plays[1:6]:
        scene.do(ev.TurnWanted(play.trajectory, 0, 0, num_tokens=10, max_new_tokens=10))
    assert len(scene.take(ev.Generate)) == 2, "they will get to 500 tokens each"


def test_split_turns_stay_with_their_engine_on_both_sides():
    engines = (("c0", "compute"), ("c1", "compute"), ("b0", "bandwidth"), ("b1", "bandwidth"))
    scene = Scene(engines=engines, tasks={"a": TaskRules(1.0, ("compute",), split=True)})
    homes: dict[str, set[tuple[str, str]]] = {}
    plays = scene.take(ev.Play)
    for turn in range(4):
        for play in plays:
            (prefill,) = generates(scene.do(ev.TurnWanted(play.trajectory, 0, turn)))
            (decode,) = generates(scene.do(ev.Prefilled(prefill.request, "kv")))
            scene.do(ev.Generated(decode.request, 0, 0))
            homes.setdefault(play.trajectory, set()).add((prefill.engine, decode.engine))
    assert all(len(seen) == 1 for seen in homes.values())
    assert set(held(scene).values()) == {len(plays) // 2}, "both sides are level"


def generates(commands: list[ev.Command]) -> list[ev.Generate]:
    return [c for c in commands if isinstance(c, ev.Generate)]


def test_a_busy_engine_keeps_its_trajectories_though_another_is_free():
    scene = many(2)
    for engine in scene.core.router.engines.values():
        engine.capacity = 1
        scene.core.router.changed(engine)
    first, second, third = scene.take(ev.Play)[:3]
    scene.do(ev.TurnWanted(first.trajectory, 0, 0), ev.TurnWanted(second.trajectory, 0, 0))
    one, two = scene.take(ev.Generate)
    assert one.engine != two.engine
    scene.do(ev.Generated(one.request, 0, 0), ev.Generated(two.request, 0, 0))
    scene.do(ev.TurnWanted(third.trajectory, 0, 0))
    (blocker,) = scene.take(ev.Generate)
    owner = first if blocker.engine == one.engine else second
    scene.do(ev.TurnWanted(owner.trajectory, 0, 1))
    assert not scene.take(ev.Generate), "its engine is busy, the other one is free"
    scene.do(ev.Generated(blocker.request, 0, 0))
    assert [(r.engine, r.trajectory) for r in scene.take(ev.Generate)] == [(blocker.engine, owner.trajectory)]


def test_an_engine_far_behind_loses_its_trajectories_to_others():
    scene = many(2, alpha=0, abort_stale=False)
    (play, *_) = scene.take(ev.Play)
    home = scene.turn(play).engine
    engine: Worker = scene.core.router.engines[home]
    scene.core.version = 1
    scene.do(*(ev.Installed(name, WeightsId(1, 1)) for name in scene.core.router.engines if name != home))
    moved = scene.do(ev.TurnWanted(play.trajectory, 0, 1))
    assert [r.engine != home for r in generates(moved)] == [True]
    assert not engine.trajectories
