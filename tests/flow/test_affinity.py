"""The choice of pools for tasks with `affinity: auto`: least cost under the model, and no flapping."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.config.load import load_all
from rollart_hpc.estimate.pools import EngineFigures, engine_figures, shape_for
from rollart_hpc.estimate.roofline import Pace
from rollart_hpc.flow import events as ev
from rollart_hpc.flow.affinity import PAUSE, Affinity, best_map, rated
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.rules import FlowRules, TaskRules, rules_of
from tests.flow.scene import Scene

OPTIONS = {"any": (), "compute": ("compute",), "bandwidth": ("bandwidth",)}
ALIVE = {"compute": 1, "bandwidth": 1}
FAST = EngineFigures(Pace(1e-4, 1e-4, 0.0, 4e-3, 0.0, 0.0, 0.0), 8, 0)
WIDE = EngineFigures(Pace(5e-4, 1e-4, 0.0, 3e-3, 0.0, 0.0, 0.0), 8, 0)
FIGURES = {"compute": FAST, "bandwidth": WIDE}
LAKE, SORT = (100, 80, 2), (16, 16, 40)  # prompt, prefilled and answer tokens of a turn


def rules(**more) -> FlowRules:
    tasks = {"lake": TaskRules(5.0, auto=True), "sort": TaskRules(3.0, auto=True)}
    return FlowRules(tasks, 100, 4, 2, figures=more.pop("figures", FIGURES), auto_options=OPTIONS, **more)


def step(affinity: Affinity, at: int, alive=ALIVE, lake=LAKE, sort=SORT, turns: int = 100, shares=(2, 1)):
    for _ in range(turns):
        for _ in range(shares[0]):
            affinity.turn("lake", *lake)
        for _ in range(shares[1]):
            affinity.turn("sort", *sort)
    return affinity.look(at, alive, ["lake", "sort"])


def test_prefill_goes_where_it_is_cheap_and_decoding_to_the_rest() -> None:
    affinity = Affinity(rules())
    assert affinity.pools("lake") == ()
    changes = step(affinity, 1)
    assert {(c.task, c.before, c.after) for c in changes} == {("lake", "any", "compute"), ("sort", "any", "bandwidth")}
    assert "20% prefix reuse" in changes[0].reason and "ms in compute" in changes[0].reason
    assert (affinity.pools("lake"), affinity.pools("sort")) == (("compute",), ("bandwidth",))


def test_swapped_figures_swap_the_map() -> None:
    affinity = Affinity(rules(figures={"compute": WIDE, "bandwidth": FAST}))
    step(affinity, 1)
    assert affinity.choices == {"lake": "bandwidth", "sort": "compute"}


def test_too_few_turns_decide_nothing() -> None:
    affinity = Affinity(rules())
    assert step(affinity, 1, turns=20) == [] and not affinity.has_chosen


def test_a_pool_without_engines_is_not_chosen_and_counts_once_it_has_some() -> None:
    affinity = Affinity(rules())
    step(affinity, 1, {"compute": 0, "bandwidth": 1})
    assert affinity.has_chosen and "compute" not in affinity.choices.values()
    for at in range(2, 20):
        step(affinity, at)
    assert affinity.choices == {"lake": "compute", "sort": "bandwidth"}


def test_a_change_of_the_work_is_followed_and_a_short_one_is_not() -> None:
    affinity = Affinity(rules())
    for at in range(1, 10):
        step(affinity, at)
    assert step(affinity, 10, shares=(1, 2)) == []
    for at in range(11, 20):
        assert step(affinity, at) == [], "it was over before it was confirmed"
    for at in range(20, 60):
        step(affinity, at, lake=SORT, sort=LAKE, shares=(1, 2))
    assert affinity.choices == {"lake": "bandwidth", "sort": "compute"}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 30), st.floats(0.5, 2.0))
def test_noise_does_not_flap(seed: int, scale: float) -> None:
    """Work on the border between two maps, with 10% of noise in every step."""
    rng, affinity, changed = random.Random(seed), Affinity(rules()), []
    for at in range(1, 120):
        noise = rng.uniform(0.9, 1.1)
        lake = (100, int(16 * scale * noise), 2)
        if step(affinity, at, lake=lake, turns=60):
            changed.append(at)
    assert len(changed) <= 2, changed
    assert all(later - earlier >= PAUSE for earlier, later in itertools.pairwise(changed))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_choice_is_the_map_of_least_cost(data: st.DataObject) -> None:
    pools = ["a", "b", "c"][: data.draw(st.integers(1, 3))]
    tasks = [f"t{i}" for i in range(data.draw(st.integers(1, 4)))]
    seconds = st.floats(0.01, 100.0)
    loads = {task: {pool: data.draw(seconds) for pool in pools} for task in tasks}
    alive = {pool: data.draw(st.integers(1, 9)) for pool in pools}
    each = {"any": (), **{pool: (pool,) for pool in pools}}
    options = {task: each if data.draw(st.booleans()) else {"": (pools[-1],)} for task in tasks}
    start = rated({task: next(iter(options[task])) for task in tasks}, options, loads, alive)
    best = best_map(options, loads, alive, start)
    every = itertools.product(*([(task, name) for name in options[task]] for task in tasks))
    least = min(rated(dict(chosen), options, loads, alive).seconds for chosen in every)
    assert best.seconds == pytest.approx(least)
    assert rated(best.choices, options, loads, alive).seconds == pytest.approx(best.seconds)


# --- in the core -----------------------------------------------------------------------------------


def play_step(scene: Scene, version: int, where: dict[str, set[str]]) -> None:
    scene.do(ev.BatchWanted(version))
    plays = scene.take(ev.Play)
    for play in plays:
        prompt, *_ = LAKE if play.task == "lake" else SORT
        scene.do(ev.TurnWanted(play.trajectory, play.issue, 0, prompt, 64))
    engines = {c.trajectory: c for c in scene.take(ev.Generate)}
    for play in plays:
        where[play.task].add(engines[play.trajectory].engine)
        answer(scene, play, engines[play.trajectory].request, version)
    scene.do(ev.Committed(version + 1))
    scene.publish(version + 1)


def answer(scene: Scene, play: ev.Play, request: int, version: int) -> None:
    _, new, answered = LAKE if play.task == "lake" else SORT
    scene.do(ev.Generated(request, version, version, new, answered))
    scene.do(ev.Ended(play.trajectory, play.issue, None, 1), ev.Scored(play.trajectory, play.issue, 1.0, True))


def test_only_trajectories_that_begin_later_move() -> None:
    scene = Scene(
        tasks=rules().tasks,
        figures=FIGURES,
        auto_options=OPTIONS,
        alpha=0,
        groups_per_step=80,
        group_size=2,
        steps=9,
        env_slots=200,
    )
    where = {"lake": set(), "sort": set()}
    play_step(scene, 0, where)
    assert where == {"lake": {"engine-c", "engine-b"}, "sort": {"engine-c", "engine-b"}}
    told = scene.take(ev.Warn)
    assert {(w.what, w.task) for w in told} == {("affinity_changed", "lake"), ("affinity_changed", "sort")}
    where = {"lake": set(), "sort": set()}
    play_step(scene, 1, where)
    assert where == {"lake": {"engine-c"}, "sort": {"engine-b"}}
    assert (scene.core.tally.fallbacks, scene.core.tally.stray_requests) == (0, 0)
    restored = Core(scene.core.rules, 2, scene.core.snapshot())
    assert restored.router.affinity.choices == {"lake": "compute", "sort": "bandwidth"}


def test_a_trajectory_stays_where_it_began() -> None:
    scene = Scene(tasks=rules().tasks, figures=FIGURES, auto_options=OPTIONS)
    play = next(play for play in scene.take(ev.Play) if play.task == "lake")
    home = scene.turn(play).engine
    other = {"engine-c": "bandwidth", "engine-b": "compute"}[home]
    scene.core.router.affinity._pools["lake"] = (other,)
    assert {scene.turn(play, turn=t).engine for t in (1, 2, 3)} == {home}


# --- with the figures of real classes ----------------------------------------------------------------

AUTO = ["tasks.frozenlake.affinity=auto", "tasks.sorting.affinity=auto"]
SWAPPED = "launcher: local\nclasses: {compute: {gpu: h20, gpus: 8}, bandwidth: {gpu: h800, gpus: 8}}\n"


def choose(lake: tuple[int, int, float], sort: tuple[int, int, float], site=None) -> dict[str, str]:
    """Of the quickstart, with turns like its own."""
    loaded = load_all("quickstart", AUTO, site)
    affinity = Affinity(
        rules_of(loaded.config, engine_figures(loaded.config, loaded.site, shape_for(loaded.config, Path())))
    )
    for _ in range(720):
        affinity.turn("frozenlake", *lake)
    for _ in range(48):
        affinity.turn("sorting", *sort)
    affinity.look(1, ALIVE, ["frozenlake", "sorting"])
    return affinity.choices


def test_the_quickstart_finds_its_map_and_swaps_it_with_the_figures(tmp_path: Path) -> None:
    swapped = tmp_path / "swapped.yaml"
    swapped.write_text(SWAPPED)
    lake, sort = (81, 16, 2), (10, 10, 42)  # as measured in its first steps
    assert choose(lake, sort) == {"frozenlake": "compute", "sorting": "bandwidth"}
    assert choose(lake, sort, swapped) == {"frozenlake": "bandwidth", "sorting": "compute"}
