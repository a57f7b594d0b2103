"""`affinity: auto` in a simulated run, beside what the simulator says about the same maps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollart_hpc.simulate.build import Case
from rollart_hpc.simulate.figures import simulate
from tests.acceptance.paper_testbed import Setting, case_of

pytestmark = pytest.mark.slow
TASKS = "frozenlake", "math"


def case(reuse: float, *affinities: str) -> Case:
    """8 H800 and 12 H20; `reuse` is FrozenLake's."""
    made = case_of(Setting(h800=8, h20=12, groups=16, tasks=TASKS, is_rollout=True), "strict")
    made.config.trainer.ranks, made.config.env.workers, made.config.reward.workers = 8, 16, 8
    for task, affinity in zip(TASKS, affinities, strict=True):
        made.config.tasks[task].affinity = affinity
    profiles = made.workload.tasks
    profiles = {**profiles, "frozenlake": replace(profiles["frozenlake"], reuse=reuse)}
    return replace(made, workload=replace(made.workload, tasks=profiles))


def chosen(reuse: float) -> tuple[str, ...]:
    return tuple(
        simulate(case(reuse, "auto", "auto"), steps=1, warm_up=1, seed=0)[1].core.router.affinity.choices.values()
    )


def step_s(reuse: float, *affinities: str) -> float:
    return simulate(case(reuse, *affinities), steps=2, seed=0)[0].step_s


def test_without_reuse_of_prefixes_both_send_frozenlake_to_the_compute_rich() -> None:
    assert chosen(0.0) == ("compute", "bandwidth")
    assert step_s(0.0, "compute", "bandwidth") < step_s(0.0, "any", "any")


def test_with_reuse_the_classes_are_as_good_as_each_other_and_the_load_decides() -> None:
    """The roofline of the busiest engine says 59 to 75; the simulator also sees the tail, and little difference."""
    assert chosen(1.0) == ("any", "any")
    ratio = step_s(1.0, "any", "any") / step_s(1.0, "compute", "bandwidth")
    assert 0.87 < ratio < 1.15
