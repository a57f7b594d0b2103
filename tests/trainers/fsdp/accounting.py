"""Peak bytes of a step of the trainer `fsdp`, by torch's own accounting. Allocates no memory.

Tensors are fake, the process group too, and `MemTracker` adds up what lives. Attention is the GPU kernel's.
"""

from __future__ import annotations

from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from rollart_hpc.config.model_shape import ModelShape
from rollart_hpc.estimate.memory import TrainerSize
from rollart_hpc.trainers import attention
from rollart_hpc.trainers.fsdp import model as models
from rollart_hpc.trainers.fsdp.backend import FsdpOptions
from rollart_hpc.trainers.packing import MicroBatch
from rollart_hpc.trainers.world import World


def peak_bytes(shape: ModelShape, size: TrainerSize) -> int:
    """Of the second micro-batch, when gradients exist, plus AdamW's states."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size.ranks)
    try:
        with mock.patch.object(attention, "_by_length", attention._in_one_call):
            return _peak(shape, size, World(0, size.ranks, torch.device("cpu")))
    finally:
        dist.destroy_process_group()


def _peak(shape: ModelShape, size: TrainerSize, world: World) -> int:
    # A mesh keeps its ranks in a tensor, which must not be a fake one.
    mesh = models.init_device_mesh("cpu", (size.ranks,))
    with mock.patch.object(models, "init_device_mesh", lambda *_: mesh), FakeTensorMode(allow_non_fake_inputs=True):
        model = _model(shape)
        if size.checkpointing:
            for layer in models._layers(model):
                models.recompute(layer)
        if size.ranks > 1 or size.item < 4:
            models._shard(model, world, torch.bfloat16 if size.item == 2 else torch.float32, FsdpOptions())
        if size.sums_whole and models.is_sharded(model):
            model.set_requires_gradient_sync(False)
        models._make_scorable(model)
        micro = _micro(size.tokens)
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            for _ in range(2):
                models.sampled_scores(model, micro, 1.0).sum().backward()
                tracker.reset_mod_stats()
        peak = sum(snapshot["Total"] for snapshot in tracker.get_tracker_snapshot("peak").values())
    trained = sum(parameter.numel() for parameter in model.parameters())
    return int(peak + 8 * trained / size.ranks)


def _model(shape: ModelShape) -> torch.nn.Module:
    family = Qwen3Config if shape.has_qk_norm else LlamaConfig
    config = family(
        hidden_size=shape.hidden, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
        vocab_size=shape.vocabulary, tie_word_embeddings=shape.is_tied,
    )  # fmt: skip
    with torch.device("cpu"):
        return AutoModelForCausalLM.from_config(
            config, attn_implementation=attention.register(), dtype=torch.float32
        ).eval()


def _micro(tokens: int) -> MicroBatch:
    """Four samples; every token counts as sampled."""
    whole, some = torch.zeros(1, tokens, dtype=torch.long), torch.zeros(tokens)
    return MicroBatch(
        ids=whole, positions=whole, lengths=[tokens // 4] * 4, keep=whole[0], targets=whole[0], behaviour=some,
        versions=some.int(), advantages=some, weights=some, rewards=some, samples=whole[0], turns=whole[0],
        num_turns=1,
    )  # fmt: skip
