from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
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


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("lengths", [[7], [5, 5, 5], [3, 3, 6, 1, 1, 1, 3]])
def test_samples_of_one_length_share_a_call(
    lengths: list[int], window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(sum(lengths), heads, 8) for heads in (4, 2, 2))
    alone = [
        attention.attend(*parts, [n], 0.3, window)
        for n, *parts in zip(lengths, q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
    ]
    calls = []
    whole = attention._batched
    monkeypatch.setattr(attention, "_batched", lambda *args: calls.append(args[0].shape[0]) or whole(*args))
    torch.testing.assert_close(attention.attend(q, k, v, lengths, 0.3, window), torch.cat(alone))
    assert calls == [len(list(same)) for _, same in groupby(lengths)]


@pytest.mark.parametrize(("window", "expected"), [(None, (-1, 0)), (100, (-1, 0)), (5, (4, 0))])
def test_what_the_gpu_kernel_is_asked_for(
    window: int | None, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own shapes of the kernel: its numbers need a GPU."""
    asked: dict[str, Any] = {}
    real = attention.varlen_attn
    monkeypatch.setattr(
        attention,
        "varlen_attn",
        lambda *args, **how: asked.update(how, ends=args[3], longest=args[5]) or real(*args, **how),
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        q, k, v = (torch.empty(12, heads, 8, dtype=torch.bfloat16, requires_grad=True) for heads in (4, 2, 2))
        out = attention._in_one_call(q, k, v, [3, 7, 2], 0.3, window)
    assert out.shape == q.shape
    assert (asked["window_size"], asked["longest"], asked["enable_gqa"]) == (expected, 7, True)
