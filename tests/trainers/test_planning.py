from __future__ import annotations

import random
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.trainers.planning import Planner, bins_in_order, in_slots

lengths_of_samples = st.lists(st.integers(1, 60), max_size=40)
planners = st.builds(Planner, ranks=st.integers(1, 5), budget=st.integers(1, 100), even_tokens=st.integers(1, 200))

LINEAR = 1 << 30


def efficiency(planner: Planner, lengths: list[int]) -> float:
    ideal = sum(planner.cost(n) for n in lengths) / planner.ranks
    return ideal / planner.critical(planner.plan(lengths), lengths)


@given(lengths_of_samples, planners)
def test_a_plan_holds_every_sample_once_within_the_budget(lengths: list[int], planner: Planner) -> None:
    slots = planner.plan(lengths)
    assert all(len(slot) == planner.ranks for slot in slots), "every rank runs the same number of micro-batches"
    bins = list(chain(*slots))
    assert sorted(chain(*bins)) == list(range(len(lengths)))
    for members in bins:
        assert len(members) <= 1 or sum(lengths[i] for i in members) <= planner.budget


@given(lengths_of_samples.filter(bool), planners)
def test_a_plan_wastes_less_than_half_of_the_budget(lengths: list[int], planner: Planner) -> None:
    num_bins = sum(1 for slot in planner.plan(lengths) for members in slot if members)
    least = max(1, sum(min(n, planner.budget) for n in lengths) / planner.budget)
    assert num_bins <= 2 * least + planner.ranks


@given(lengths_of_samples.filter(bool), planners)
def test_a_plan_takes_longer_than_its_work_by_one_micro_batch_at_most(lengths: list[int], planner: Planner) -> None:
    slots = planner.plan(lengths)
    ideal = sum(planner.cost(n) for n in lengths) / planner.ranks
    highest = max(max(planner.costs(slot, lengths)) for slot in slots)
    assert planner.critical(slots, lengths) <= ideal + 2 * highest


def test_a_plan_evens_out_the_ranks() -> None:
    planner = Planner(2, 8192, LINEAR)
    (slot,) = planner.plan([300] * 32)
    assert [len(members) for members in slot] == [16, 16]


def test_a_long_sample_weighs_more_than_its_tokens() -> None:
    """Four of 25 tokens cost less than one of 100, so with it they are spread unevenly in tokens."""
    planner = Planner(2, 1000, even_tokens=100)
    assert planner.cost(100) == 20_000 and 4 * planner.cost(25) == 12_500
    (slot,) = planner.plan([100, *[25] * 6])
    assert sorted(len(members) for members in slot) == [1, 6]


def test_what_stands_beside_a_long_sample_costs_no_time() -> None:
    planner = Planner(2, 32, LINEAR)
    lengths = [30, *[1] * 60]
    assert planner.critical(planner.plan(lengths), lengths) // planner.cost(1) == 45, "half of all tokens"


@pytest.mark.parametrize("ranks", [1, 3])
def test_nothing_to_plan(ranks: int) -> None:
    assert Planner(ranks, 10, LINEAR).plan([]) == []


@pytest.mark.parametrize(("ranks", "least"), [(1, 1.0), (8, 0.98), (32, 0.94)])
def test_whole_batches_of_samples_with_a_long_tail_are_planned_well(ranks: int, least: float) -> None:
    rng = random.Random(0)
    lengths = [min(32768, max(500, int(rng.lognormvariate(9.0, 0.6)))) for _ in range(512)]
    assert efficiency(Planner(ranks, 32768, 50_000), lengths) >= least


@given(st.lists(st.integers(1, 30), max_size=12), st.integers(1, 60))
def test_bins_in_order_keep_to_the_order_and_the_budget(lengths: list[int], budget: int) -> None:
    bins = bins_in_order(lengths, budget)
    assert list(chain(*bins)) == list(range(len(lengths)))
    assert all(len(members) == 1 or sum(lengths[i] for i in members) <= budget for members in bins)


def test_the_last_slot_is_padded() -> None:
    assert in_slots([[0], [1, 2], [3]], ranks=2) == [[[0], [1, 2]], [[3], []]]
    assert in_slots([], ranks=2) == []
