from __future__ import annotations

import numpy as np
import torch

from rollart_hpc.trainers import packing
from rollart_hpc.types import OBSERVED, Sample, TokenRecord

CPU = torch.device("cpu")


def record(versions: list[int]) -> TokenRecord:
    n = len(versions)
    ids = np.arange(100, 100 + n, dtype=np.int32)
    return TokenRecord(ids, -np.arange(n, dtype=np.float32), np.array(versions, np.int32))


def sample(versions: list[int], *advantages: float) -> Sample:
    given = np.array(advantages, np.float32) if advantages else None
    return Sample("t", 0, "task", record(versions), 0.5, advantages=given)


def test_a_packed_micro_batch_in_full() -> None:
    micro = packing.pack([sample([-1, -1, 4, 4], 1.0, 3.0), sample([-1, 5, -1], -2.0)], [0.5, 1.0], CPU)
    assert micro.ids.tolist() == [[100, 101, 102, 103, 100, 101, 102]]
    assert micro.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2]]
    assert micro.lengths == [4, 3]
    assert micro.keep.tolist() == [1, 2, 4]  # the place before each sampled token
    assert micro.targets.tolist() == [102, 103, 101]
    assert micro.behaviour.tolist() == [-2.0, -3.0, -1.0]
    assert micro.versions.tolist() == [4, 4, 5]
    assert micro.advantages.tolist() == [1.0, 3.0, -2.0]
    assert micro.weights.tolist() == [0.5, 0.5, 1.0]
    assert micro.rewards.tolist() == [0.5, 0.5, 0.5]
    assert micro.samples.tolist() == micro.turns.tolist() == [0, 0, 1]


def test_turns_are_numbered_over_all_samples() -> None:
    micro = packing.pack([sample([-1, 4, 4, -1, 4]), sample([5, 5, -1]), sample([-1, 5])], [1.0] * 3, CPU)
    assert micro.turns.tolist() == [0, 0, 1, 2, 3]
    assert micro.samples.tolist() == [0, 0, 0, 1, 2]
    assert micro.num_turns == 4
    assert micro.advantages.tolist() == [0.0] * 5


def test_an_empty_micro_batch_trains_nothing() -> None:
    micro = packing.pack([], [], CPU)
    assert micro.ids.shape == micro.positions.shape == (1, 1)
    assert micro.lengths == [1]
    assert micro.num_sampled == 0


def test_a_first_token_can_not_be_trained() -> None:
    assert packing.num_trainable(sample([3, 3, OBSERVED])) == 1
    assert packing.pack([sample([3, 3, OBSERVED])], [1.0], CPU).keep.tolist() == [0]
    assert packing.num_trainable(sample([3])) == 0
