"""Any order of arrival, any moment at which the trainer looks: each sample once, and never much worse than at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.trainers.merging import Balanced, InOrder, Waiting
from rollart_hpc.trainers.planning import Planner, Slot

EVEN_TOKENS = 50_000
Groups = list[list[int]]


@dataclass
class Streamed:
    slots: list[Slot] = field(default_factory=list)
    num_early: int = 0


def stream(waiting: Waiting, groups: Groups, idle: Container[int]) -> Streamed:
    """The trainer looks at what waits when the groups of `idle` have come, and at the end."""
    streamed = Streamed()
    for number, group in enumerate(groups):
        waiting.add(group)
        if number in idle and number < len(groups) - 1:
            streamed.slots += waiting.ready()
    streamed.num_early = len(streamed.slots)
    streamed.slots += waiting.rest()
    return streamed


def flat(groups: Groups) -> list[int]:
    return list(chain(*groups))


def relative_efficiency(planner: Planner, groups: Groups, idle: Container[int], longest: int) -> float:
    lengths = flat(groups)
    slots = stream(Balanced(planner, longest=longest), groups, idle).slots
    return planner.critical(planner.plan(lengths), lengths) / planner.critical(slots, lengths)


# --- every sample once -----------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(1, 60), max_size=6), max_size=12),
    st.builds(Planner, ranks=st.integers(1, 4), budget=st.integers(1, 100), even_tokens=st.integers(1, 200)),
    st.sets(st.integers(0, 11)),
    st.sampled_from([lambda planner: Balanced(planner, longest=60), InOrder]),
)
def test_each_sample_is_trained_once_within_the_budget(
    groups: Groups, planner: Planner, idle: set[int], kind: Callable[[Planner], Waiting]
) -> None:
    waiting = kind(planner)
    slots = stream(waiting, groups, idle).slots
    lengths = flat(groups)
    assert sorted(chain(*chain(*slots))) == list(range(len(lengths)))
    assert all(len(slot) == planner.ranks for slot in slots)
    for members in chain(*slots):
        assert len(members) <= 1 or sum(lengths[i] for i in members) <= planner.budget
    assert waiting.num_slots == len(slots)
    ideal = sum(planner.cost(n) for n in lengths) / planner.ranks
    assert waiting.efficiency == pytest.approx(ideal / planner.critical(slots, lengths) if lengths else 1.0)
    assert waiting.rest() == []


# --- efficiency ------------------------------------------------------------------------------


def long_tail(rng: random.Random, longest: int) -> int:
    return min(longest, max(1, int(rng.lognormvariate(0, 0.6) * longest / 4)))


def heavy_tail(rng: random.Random, longest: int) -> int:
    return min(longest, max(1, int(rng.lognormvariate(0, 1.3) * longest / 12)))


def any_length(rng: random.Random, longest: int) -> int:
    return rng.randint(1, longest)


def long_or_short(rng: random.Random, longest: int) -> int:
    return longest if rng.random() < 0.1 else rng.randint(longest // 50 + 1, longest // 20 + 2)


def nearly_equal(rng: random.Random, longest: int) -> int:
    return rng.randint(longest * 9 // 10, longest)


ORDERS: list[Callable[[Groups], Groups]] = [
    lambda groups: groups,
    lambda groups: sorted(groups, key=max),
    lambda groups: sorted(groups, key=max, reverse=True),
    lambda groups: sorted(groups, key=lambda group: (max(group) > max(flat(groups)) // 2, sum(group))),
]


@pytest.mark.parametrize("draw", [long_tail, heavy_tail, any_length, long_or_short, nearly_equal])
@pytest.mark.parametrize("ranks", [1, 2, 5, 16, 32, 64])
def test_streaming_stays_close_to_the_whole_batch(draw: Callable[[random.Random, int], int], ranks: int) -> None:
    """Random sizes and moments; the seeds are fixed, because no rule can be right about every future."""
    for seed in range(4):
        rng = random.Random(f"{draw.__name__} {ranks} {seed}")
        budget = rng.choice([1000, 4096, 32768])
        longest = int(budget * rng.choice([0.1, 0.5, 1.0, 1.0, 1.5]))
        planner = Planner(ranks, budget, rng.choice([budget // 2, budget * 3 // 2, budget * 50]))
        size = rng.choice([1, 4, 8, 16])
        num_groups = min(ranks * rng.choice([1, 4, 16]), 400) // size + 4
        groups = [[draw(rng, longest) for _ in range(size)] for _ in range(num_groups)]
        is_idle = rng.choice([1.0, 0.3, 0.1])
        idle = {number for number in range(num_groups) if rng.random() < is_idle}
        for order in ORDERS:
            assert relative_efficiency(planner, order(groups), idle, longest) >= 0.9


def agentic_batch() -> Groups:
    """64 groups of 8 samples with 9,800 tokens on average, up to 32,768."""
    rng = random.Random(0)
    return [[min(32768, max(500, int(rng.lognormvariate(9.0, 0.6)))) for _ in range(8)] for _ in range(64)]


@pytest.mark.parametrize("order", ORDERS)
def test_an_agentic_batch_group_by_group_on_32_ranks(order: Callable[[Groups], Groups]) -> None:
    planner, groups = Planner(32, 32768, EVEN_TOKENS), order(agentic_batch())
    lengths = flat(groups)
    ideal = sum(planner.cost(n) for n in lengths) / planner.ranks
    alone = sum(planner.critical(planner.plan(group), group) for group in groups)
    assert ideal / alone < 0.15, "each group by itself leaves most ranks without work"
    waiting = Balanced(planner, longest=32768)
    streamed = stream(waiting, groups, idle=range(len(groups)))
    assert waiting.efficiency >= 0.9 * ideal / planner.critical(planner.plan(lengths), lengths)
    assert waiting.efficiency > 0.9
    assert streamed.num_early >= 2, "it does not simply wait for the whole batch"
    assert waiting.num_slots <= len(planner.plan(lengths)) + 1


def test_one_rank_trains_what_fills_a_micro_batch() -> None:
    waiting = Balanced(Planner(1, 100, EVEN_TOKENS), longest=1000)
    waiting.add([40, 40])
    assert waiting.ready() == []
    waiting.add([15])
    assert waiting.ready() == [[[0, 1, 2]]], "95 of 100 tokens are full"
    waiting.add([60, 60])
    assert waiting.ready() == [[[3]]], "nothing that waits fits in beside it; the other may still be filled up"
    assert waiting.rest() == [[[4]]]


def test_filling_is_kept_for_a_long_sample_that_may_come() -> None:
    """Two slots of short samples wait. Were both trained, a long sample would leave the second rank without work."""
    planner = Planner(2, 100, EVEN_TOKENS)
    waiting = Balanced(planner, longest=100)
    waiting.add([10] * 40)
    assert len(waiting.ready()) == 1
    waiting.add([100])
    assert len(waiting.rest()) == 2
    assert waiting.efficiency > 0.95


def test_a_pipeline_waits_for_many_micro_batches() -> None:
    waiting = Balanced(Planner(1, 100, EVEN_TOKENS), longest=100, num_stages=2)
    waiting.add([100] * 19)
    assert waiting.ready() == []
    waiting.add([100])
    assert len(waiting.ready()) == 20


# --- in order --------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(1, 30), max_size=6), max_size=8),
    st.integers(1, 60),
    st.integers(1, 4),
    st.sets(st.integers(0, 7)),
)
def test_slots_in_order_do_not_depend_on_when_the_trainer_looks(
    groups: Groups, budget: int, ranks: int, idle: set[int]
) -> None:
    planner = Planner(ranks, budget, EVEN_TOKENS)
    assert stream(InOrder(planner), groups, idle).slots == stream(InOrder(planner), groups, ()).slots


def test_slots_in_order_keep_to_one_group() -> None:
    waiting = InOrder(Planner(2, 10, EVEN_TOKENS))
    waiting.add([4, 4, 4])
    assert waiting.ready() == [[[0, 1], [2]]]
    waiting.add([1])
    assert waiting.ready() == []
    waiting.add([1, 1])
    assert waiting.ready() == [[[3], [4, 5]]]
    waiting.add([9])
    assert waiting.rest() == [[[6], []]]
