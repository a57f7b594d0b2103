"""The estimate of `plan` against torch's own accounting of the trainer, for models that would need many GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollart_hpc.config.model_shape import ModelShape
from rollart_hpc.estimate import memory
from rollart_hpc.estimate.memory import TrainerSize, trainer_parts
from rollart_hpc.trainers import slices
from tests.processes import server
from tests.trainers.fsdp.accounting import peak_bytes

OVER = 1.15  # an estimate is an upper bound, and at most this factor too high
QWEN_06B = ModelShape(1024, 3, 16, 8, 128, 3072, 151936, is_tied=True, has_qk_norm=True)
QWEN_8B = ModelShape(4096, 3, 32, 8, 128, 12288, 151936, is_tied=False, has_qk_norm=True)
QWEN_32B = ModelShape(5120, 4, 64, 8, 128, 25600, 151936, is_tied=False, has_qk_norm=True)
LLAMA_8B = ModelShape(4096, 3, 32, 8, 128, 14336, 128256, is_tied=False)
CASES = [
    (QWEN_06B, TrainerSize(1, 4096, item=4, shards=1)),
    (QWEN_06B, TrainerSize(2, 4096, item=4, checkpointing=True, shards=2)),
    (QWEN_8B, TrainerSize(8, 8192, item=2, shards=8)),
    (QWEN_8B, TrainerSize(8, 32768, item=2, checkpointing=True, shards=8)),
    (QWEN_32B, TrainerSize(32, 32768, item=2, checkpointing=True, shards=32)),
    (LLAMA_8B, TrainerSize(8, 16384, item=2, checkpointing=True, shards=8)),
]


def ratio(shape: ModelShape, size: TrainerSize, out: str) -> None:
    """In a process of its own: a fake process group is that of the whole process."""
    with open(out, "w") as file:
        file.write(str(sum(trainer_parts(shape, size).values()) / peak_bytes(shape, size)))


@pytest.mark.parametrize(("shape", "size"), CASES)
def test_the_estimate_is_a_close_upper_bound(shape: ModelShape, size: TrainerSize, tmp_path: object) -> None:
    out = f"{tmp_path}/ratio"
    process = server.Process(target=ratio, args=(shape, size, out))
    process.start()
    process.join(120)
    with open(out) as file:
        assert 1.0 <= float(file.read()) <= OVER


def test_slices_have_the_size_that_is_estimated() -> None:
    assert memory.SLICE_NUMBERS == slices.SLICE_NUMBERS


def test_qwen3_32b_at_32k_tokens_leaves_a_fifth_of_a_card_of_80_gb() -> None:
    size = TrainerSize(32, 32768, item=2, checkpointing=True, shards=32)
    assert sum(trainer_parts(replace(QWEN_32B, layers=64), size).values()) < 0.8 * 80 * 2**30
