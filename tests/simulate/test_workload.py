"""Laws and plays: means, limits, and the same play for the same seeds."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.config.schema import Latency, TaskConfig, Trouble
from rollart_hpc.simulate.laws import Law, measured
from rollart_hpc.simulate.presets import FROZENLAKE, GAME, PRESETS
from rollart_hpc.simulate.workload import draw

LIMITS = TaskConfig(max_turns=100, max_response_tokens=16384, max_tokens=32768)


@pytest.mark.parametrize(
    "law", [Law(40, 0.5), Law(10, 0.3, normal=True), measured([Random(1).gauss(5, 1) for _ in range(2)])]
)
def test_a_law_keeps_its_mean(law: Law) -> None:
    chance = Random(3)
    assert fmean(law.at(chance.gauss(0, 1)) for _ in range(20_000)) == pytest.approx(law.mean, rel=0.03)


def test_a_measured_law_gives_the_values_back() -> None:
    values = [1.0, 2.0, 3.0, 10.0]
    law = measured(values)
    assert [law.at(z) for z in (-9, 9)] == [1.0, 10.0]
    assert min(values) <= law.at(0.3) <= max(values)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PRESETS["paper"].tasks)), st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_a_play_keeps_the_limits_of_the_run_file(task: str, seed: int, sample_seed: int) -> None:
    limits = replace(LIMITS, max_turns=30, max_tokens=4096, max_response_tokens=500)
    script = draw(PRESETS["paper"].tasks[task], limits, seed, sample_seed)
    assert 1 <= len(script.prompts) == len(script.answers) == len(script.steps_s) <= 30
    assert all(1 <= answer <= 500 for answer in script.answers)
    assert script.tokens <= max(4096, script.prompts[0] + 1)
    assert script == draw(PRESETS["paper"].tasks[task], limits, seed, sample_seed)


def test_members_of_a_group_have_something_in_common() -> None:
    lengths = [[len(draw(FROZENLAKE, LIMITS, g, g * 100 + m).prompts) for m in range(8)] for g in range(200)]
    all_ = [n for group in lengths for n in group]
    mean = fmean(all_)
    between = fmean((fmean(group) - mean) ** 2 for group in lengths)
    whole = fmean((n - mean) ** 2 for n in all_)
    assert whole / 8 * 1.5 < between < whole


def test_a_retry_is_the_same_play_with_other_luck() -> None:
    profile = replace(GAME, reset_fails=0.5)
    scripts = [draw(profile, LIMITS, 1, 2, issue) for issue in range(20)]
    assert {script.fails_at for script in scripts} == {-1, 1}
    assert len({script.tokens for script in scripts}) == 1


def test_latency_of_the_run_file_is_added() -> None:
    slow = replace(LIMITS, trouble=Trouble(turn_latency=Latency(10.0, 0.0)))
    quick, late = (draw(FROZENLAKE, limits, 5, 6) for limits in (LIMITS, slow))
    assert [b - a for a, b in zip(quick.steps_s, late.steps_s)] == pytest.approx([10.0] * len(quick.steps_s))
