from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.trainers import packing
from rollart_hpc.types import OBSERVED, Sample, TokenRecord, TrainGroup

CPU = torch.device("cpu")
lengths_of_samples = st.lists(st.integers(1, 60), max_size=40)


def record(versions: list[int]) -> TokenRecord:
    n = len(versions)
    ids = np.arange(100, 100 + n, dtype=np.int32)
    return TokenRecord(ids, -np.arange(n, dtype=np.float32), np.array(versions, np.int32))


def sample(versions: list[int], advantage: float = 0.0) -> Sample:
    return Sample("t", 0, "task", record(versions), 0.0, advantage)


def groups_of(lengths: list[list[int]]) -> list[TrainGroup]:
    return [TrainGroup(i, "task", [sample([0] * n) for n in group]) for i, group in enumerate(lengths)]


@given(lengths_of_samples, st.integers(1, 100), st.integers(1, 5))
def test_a_plan_holds_every_sample_once_within_the_budget(lengths: list[int], budget: int, ranks: int) -> None:
    plan = packing.plan(lengths, budget, ranks)
    assert len(plan) == ranks
    assert len({len(hand) for hand in plan}) == 1, "every rank runs the same number of forwards"
    bins = list(chain(*plan))
    assert sorted(chain(*bins)) == list(range(len(lengths)))
    for members in bins:
        assert len(members) <= 1 or sum(lengths[i] for i in members) <= budget


@given(lengths_of_samples.filter(bool), st.integers(1, 100), st.integers(1, 5))
def test_a_plan_wastes_less_than_half_of_the_budget(lengths: list[int], budget: int, ranks: int) -> None:
    num_bins = sum(1 for hand in packing.plan(lengths, budget, ranks) for members in hand if members)
    least = max(1, sum(min(n, budget) for n in lengths) / budget)
    assert num_bins <= 2 * least + ranks


def test_a_plan_evens_out_the_ranks() -> None:
    plan = packing.plan([300] * 32, budget=8192, ranks=2)
    assert [sum(300 * len(members) for members in hand) for hand in plan] == [4800, 4800]


@given(st.lists(st.lists(st.integers(1, 30), max_size=6), max_size=6), st.integers(1, 60), st.integers(1, 4), st.data())
def test_bins_in_order_do_not_depend_on_chunks(
    lengths: list[list[int]], budget: int, ranks: int, data: st.DataObject
) -> None:
    groups = groups_of(lengths)
    whole = packing.deal(packing.bins_in_order(groups, budget), ranks, 0)
    cut = data.draw(st.integers(0, len(groups)))
    first, second = packing.bins_in_order(groups[:cut], budget), packing.bins_in_order(groups[cut:], budget)
    offset = sum(len(group.samples) for group in groups[:cut])
    moved = [[i + offset for i in members] for members in second]
    parts = packing.deal(first, ranks, 0), packing.deal(moved, ranks, len(first) % ranks)
    for rank in range(ranks):
        assert [b for b in whole[rank] if b] == [b for part in parts for b in part[rank] if b]
    for part in parts:
        assert len({len(hand) for hand in part}) == 1


@given(st.lists(st.lists(st.integers(1, 30), max_size=6), max_size=6), st.integers(1, 60))
def test_bins_in_order_keep_to_one_group(lengths: list[list[int]], budget: int) -> None:
    flat = [(g, n) for g, group in enumerate(lengths) for n in group]
    bins = packing.bins_in_order(groups_of(lengths), budget)
    assert list(chain(*bins)) == list(range(len(flat)))
    for members in bins:
        assert len({flat[i][0] for i in members}) == 1
        assert len(members) == 1 or sum(flat[i][1] for i in members) <= budget


def test_a_packed_micro_batch_in_full() -> None:
    one, two = sample([-1, -1, 4, 4], advantage=1.0), sample([-1, 5, -1], advantage=-2.0)
    micro = packing.pack([one, two], [0.5, 1.0], CPU)
    assert micro.ids.tolist() == [[100, 101, 102, 103, 100, 101, 102]]
    assert micro.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2]]
    assert micro.lengths == [4, 3]
    assert micro.keep.tolist() == [1, 2, 4]  # the place before each sampled token
    assert micro.targets.tolist() == [102, 103, 101]
    assert micro.behaviour.tolist() == [-2.0, -3.0, -1.0]
    assert micro.versions.tolist() == [4, 4, 5]
    assert micro.advantages.tolist() == [1.0, 1.0, -2.0]
    assert micro.weights.tolist() == [0.5, 0.5, 1.0]


def test_an_empty_micro_batch_trains_nothing() -> None:
    micro = packing.pack([], [], CPU)
    assert micro.ids.shape == micro.positions.shape == (1, 1)
    assert micro.lengths == [1]
    assert micro.num_sampled == 0


def test_a_first_token_can_not_be_trained() -> None:
    assert packing.num_trainable(sample([3, 3, OBSERVED])) == 1
    assert packing.pack([sample([3, 3, OBSERVED])], [1.0], CPU).keep.tolist() == [0]
    assert packing.num_trainable(sample([3])) == 0


@pytest.mark.parametrize("ranks", [1, 3])
def test_nothing_to_plan(ranks: int) -> None:
    assert packing.plan([], 10, ranks) == [[] for _ in range(ranks)]
