"""The search alone, with a stand-in for the simulation; and the moves within a budget of GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.config.classes import homes_of
from rollart_hpc.config.load import load_all
from rollart_hpc.errors import UserError
from rollart_hpc.simulate.knobs import (
    VARY,
    WITH_A_PRICE,
    Move,
    budget_of,
    fitted_to,
    gpus_used,
    moves,
    with_changes,
)
from rollart_hpc.simulate.search import Rating, search

LOADED = load_all("qwen3-8b-h800-h20", [], needs_model=False)
CONFIG, SITE = LOADED.config, LOADED.site
HOMES = homes_of(CONFIG, SITE)


def neighbours(candidate: dict[str, int]) -> list[Move]:
    x, y = candidate.get("x", 0), candidate.get("y", 0)
    steps = [("x", x + 1), ("x", x - 1), ("y", y + 1), ("y", y - 1)]
    return [Move(key, ("trainer",) if key == "y" else ("latency",), {key: value}) for key, value in steps]


def rate(candidates):
    """A bowl with its bottom at (3, -2); x above 5 can't be."""
    found = []
    for each in candidates:
        x, y = each.get("x", 0), each.get("y", 0)
        worth = 10 + (x - 3) ** 2 + (y + 2) ** 2
        found.append(None if x > 5 else Rating(worth, "latency of groups" if x != 3 else "trainer"))
    return found


@pytest.mark.parametrize("at_once", [1, 2, 7])
def test_it_finds_the_bottom_and_says_when_nothing_helps_any_more(at_once: int) -> None:
    found = search({}, neighbours, rate, lambda: True, at_once)
    assert found.best == {"x": 3, "y": -2} and found.is_complete
    assert found.rated[0][1].worth == 10 and found.num_tried == len(found.rated) - 1 + found.num_impossible


def test_it_tries_what_helps_first_and_nothing_twice() -> None:
    tried = []

    def noted(candidates):
        tried.extend(candidates)
        return rate(candidates)

    search({}, neighbours, noted, lambda: True)
    assert tried[1:4] == [{"x": 1}, {"x": 2}, {"x": 3}], "latency binds: x first"
    assert len({repr(sorted(each.items())) for each in tried}) == len(tried)


def test_what_changes_nothing_is_the_same_run() -> None:
    tried = []

    def noted(candidates):
        tried.extend(candidates)
        return rate(candidates)

    search({}, neighbours, noted, lambda: True, tidy=lambda candidate: {k: v for k, v in candidate.items() if v})
    assert {} in tried and all(0 not in each.values() for each in tried)


def test_it_ends_with_the_time() -> None:
    left = iter([True, True, False])
    found = search({}, neighbours, rate, lambda: next(left))
    assert not found.is_complete and found.num_tried == 2


# --- moves -----------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_moves_keep_the_budget_and_give_legal_runs(data: st.DataObject) -> None:
    budget = budget_of(CONFIG, SITE, [])
    config = CONFIG
    for _ in range(4):
        found = list(moves(config, SITE, budget, (*VARY, *WITH_A_PRICE)))
        move = data.draw(st.sampled_from(found))
        config = with_changes(config, move.changes)
        used = gpus_used(config, HOMES)
        assert all(used[name] <= budget[name] for name in used)
        assert config.trainer.ranks >= 1 and all(pool.tensor_parallel <= 8 for pool in config.pools.values())


def test_every_kind_of_move_is_there() -> None:
    config = replace(CONFIG, flow=replace(CONFIG.flow, streaming=False))
    found = list(moves(config, SITE, budget_of(CONFIG, SITE, []), (*VARY, *WITH_A_PRICE)))
    assert {move.kind for move in found} == {*VARY, *WITH_A_PRICE} - {"engines"}, "no class has two pools or free GPUs"
    more = list(moves(config, SITE, {"h800": 96, "h20": 40}, ("engines",)))
    assert [move.changes for move in more] == [{"pools.bandwidth.engines": 40}]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["h80=8"], "the run uses no class 'h80'"),
        (["h800=none"], "not a number of GPUs above 0"),
        (["h800=0"], "not a number of GPUs above 0"),
        (["h800=960"], "more than site h800-h20 gives a job: 96"),
    ],
)
def test_impossible_budgets(wanted: list[str], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        budget_of(CONFIG, SITE, wanted)


def test_a_smaller_budget_takes_engines_first() -> None:
    changes = fitted_to(CONFIG, HOMES, {"h800": 64, "h20": 16})
    assert changes == {"pools.compute.engines": 32, "pools.bandwidth.engines": 16}
    assert fitted_to(CONFIG, HOMES, {"h800": 20, "h20": 32})["trainer.ranks"] == 20
