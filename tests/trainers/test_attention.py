from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rollart_hpc.trainers import attention, packing
from rollart_hpc.types import Sample
from tests.trainers.plain import make_record

CPU = torch.device("cpu")


def samples(*lengths: int, seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [Sample(str(i), 0, "task", make_record(rng, n), 0.0) for i, n in enumerate(lengths)]


def logits(directory: Path, implementation: str, packed: list[Sample]) -> torch.Tensor:
    attention.register()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation=implementation)
    micro = packing.pack(packed, [1.0] * len(packed), CPU)
    extra = {"sample_lengths": micro.lengths} if implementation == attention.NAME else {}
    with torch.no_grad():
        return model.eval()(input_ids=micro.ids, position_ids=micro.positions, use_cache=False, **extra).logits[0]


def test_it_equals_the_block_diagonal_mask_of_transformers(model_dir: Path) -> None:
    packed = samples(17, 1, 30, 5)
    dense, ours = logits(model_dir, "sdpa", packed), logits(model_dir, attention.NAME, packed)
    torch.testing.assert_close(ours, dense, atol=1e-5, rtol=1e-5)


def test_a_sample_does_not_see_its_neighbours(model_dir: Path) -> None:
    before = samples(12, 20, 9)
    after = samples(12, 20, 9)
    after[0].record.ids[:] = 3
    after[2].record.ids[:] = 4
    a, b = logits(model_dir, attention.NAME, before), logits(model_dir, attention.NAME, after)
    assert torch.equal(a[12:32], b[12:32])
    assert not torch.equal(a[:12], b[:12])


def test_a_sample_does_not_see_its_future(model_dir: Path) -> None:
    before, after = samples(12), samples(12)
    after[0].record.ids[8:] = 3
    a, b = logits(model_dir, attention.NAME, before), logits(model_dir, attention.NAME, after)
    torch.testing.assert_close(a[:8], b[:8], atol=1e-6, rtol=1e-6)
    assert not torch.equal(a[8:], b[8:])
