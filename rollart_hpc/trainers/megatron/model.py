"""The GPTModel of this rank and its packed forward. Owns megatron's configuration; knows no loss.

On a GPU: Transformer Engine's layers, fused kernels, bfloat16 weights with float32 copies in the optimizer. This path
is written from megatron-core's documentation and is not tested. On a CPU: megatron's own torch layers, float32.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.mappings import copy_to_tensor_model_parallel_region
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import ModuleSpec, TransformerConfig

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.trainers.megatron import exchange, layout
from rollart_hpc.trainers.megatron.attention import PackedAttention
from rollart_hpc.trainers.megatron.backend import MegatronOptions, sizes_of
from rollart_hpc.trainers.megatron.exchange import Coordinates
from rollart_hpc.trainers.megatron.families import Family, read_family
from rollart_hpc.trainers.megatron.layout import Shape, Weight
from rollart_hpc.trainers.megatron.vocabulary import chosen_logprobs
from rollart_hpc.trainers.packing import MicroBatch
from rollart_hpc.trainers.slices import in_slices
from rollart_hpc.trainers.world import World

_OUTPUT = "output_layer.weight"


class Scoring(NamedTuple):
    """What the last stage computes of each sampled token."""

    temperature: float
    vocabulary: int  # without padding
    with_entropy: bool = False


class Policy(GPTModel):  # type: ignore[misc]
    """Returns scores [1, sampled, 1 or 2] on the last stage (log-prob, entropy), hidden states on the others."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._micro: MicroBatch | None = None
        self._scoring: Scoring | None = None
        if self.post_process:
            self.output_layer.forward = self._score

    def forward(self, micro: MicroBatch, scoring: Scoring) -> torch.Tensor:
        self._micro, self._scoring = micro, scoring
        return super().forward(micro.ids, micro.positions, None, packed_seq_params=_packed(micro))

    def _score(
        self, hidden: torch.Tensor, weight: torch.Tensor | None = None, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Instead of logits [tokens, 1, vocabulary]: scores, only where tokens were sampled, slice by slice.

        An empty micro-batch has one row, which must be ignored.
        """
        micro, scoring = self._micro, self._scoring
        assert micro is not None and scoring is not None
        keep, targets = (micro.keep, micro.targets) if micro.num_sampled else (micro.ids[0, :1] * 0, micro.ids[0, :1])
        weight = self.output_layer.weight if weight is None else weight
        score = partial(vocabulary_scores, scoring, self.pg_collection.tp)
        hidden = copy_to_tensor_model_parallel_region(hidden[keep, 0])
        return in_slices(score, hidden, targets, (weight,), weight.shape[0])[:, None], None


class ValueHead(torch.nn.Module):
    """One output per token, which begins at 0. Every tensor-parallel rank has it whole, as it has the hidden states."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, width))
        self.micro: MicroBatch | None = None
        self.sequence_parallel = False

    def forward(self, hidden: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        assert self.micro is not None
        keep = self.micro.keep if self.micro.num_sampled else self.micro.ids[0, :1] * 0
        return F.linear(hidden[keep], self.weight).float(), None


class Values(GPTModel):  # type: ignore[misc]
    """Returns values [1, sampled, 1] on the last stage, hidden states on the others."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        if self.post_process:
            self.output_layer = ValueHead(self.config.hidden_size).to(self.config.params_dtype)

    def forward(self, micro: MicroBatch) -> torch.Tensor:
        if self.post_process:
            self.output_layer.micro = micro
        return super().forward(micro.ids, micro.positions, None, packed_seq_params=_packed(micro))


def vocabulary_scores(
    scoring: Scoring, group: Any, hidden: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    found = chosen_logprobs(
        F.linear(hidden, weight).float() / scoring.temperature,
        targets,
        vocabulary=scoring.vocabulary,
        group=group,
        wants_entropy=scoring.with_entropy,
    )
    parts = [found.logprobs] if found.entropy is None else [found.logprobs, found.entropy]
    return torch.stack(parts, 1)


class LoadedModel(NamedTuple):
    """A model with weights, and where each weight is."""

    model: GPTModel
    config: TransformerConfig
    family: Family
    table: list[Weight]
    coordinates: Coordinates


def open_groups(sizes: MegatronOptions) -> None:
    """Create megatron's groups once: they are global to the process."""
    if parallel_state.model_parallel_is_initialized():
        return
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=sizes.tensor_parallel,
        pipeline_model_parallel_size=sizes.pipeline_parallel,
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(0)


def load(directory: Path, run: RunConfig, world: World) -> LoadedModel:
    """This rank's part of the model, before any wrapping."""
    return _load(directory, run, world, Policy)


def load_critic(directory: Path, run: RunConfig, world: World) -> LoadedModel:
    """The same with one output instead of a vocabulary."""
    return _load(directory, run, world, Values)


def _load(directory: Path, run: RunConfig, world: World, kind: type[GPTModel]) -> LoadedModel:
    family, sizes = read_family(directory), sizes_of(run)
    _check_sizes(family, sizes, directory)
    is_gpu = world.device.type == "cuda"
    config = _config(family, run, is_gpu=is_gpu)
    multiple = sizes.vocabulary_multiple * sizes.tensor_parallel
    shape = Shape(sizes.tensor_parallel, sizes.pipeline_parallel, family.padded_vocabulary(multiple), is_gpu)
    model = _build(family, config, shape, kind)
    table = list(layout.weights(family, shape))
    coordinates = _coordinates(sizes)
    parameters = dict(model.named_parameters())
    if kind is Values:
        table = [weight for weight in table if weight.name != _OUTPUT]
        parameters.pop(_OUTPUT, None)
    exchange.read_into(parameters, table, coordinates, directory)
    _mark_split(parameters, table)
    return LoadedModel(model.to(world.device), config, family, table, coordinates)


def _build(family: Family, config: TransformerConfig, shape: Shape, kind: type[GPTModel]) -> GPTModel:
    model = kind(
        config=config,
        transformer_layer_spec=_layer_spec(family, is_gpu=shape.has_fused_norms),
        vocab_size=shape.vocabulary,
        max_sequence_length=family.max_positions,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=family.is_tied and kind is Policy,
        position_embedding_type="rope",
        rotary_base=family.rope_theta,
    )
    if family.rope_scaling is not None:
        model.rotary_pos_emb.inv_freq = _llama3(model.rotary_pos_emb.inv_freq, family.rope_scaling)
    return model


def _config(family: Family, run: RunConfig, *, is_gpu: bool) -> TransformerConfig:
    sizes, dtype = sizes_of(run), getattr(torch, run.trainer.dtype)
    recompute: dict[str, Any] = {}
    if run.trainer.activation_checkpointing:
        recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=family.num_layers,
        hidden_size=family.hidden_size,
        ffn_hidden_size=family.ffn_size,
        num_attention_heads=family.num_heads,
        num_query_groups=family.num_kv_heads,
        kv_channels=family.head_size,
        layernorm_epsilon=family.norm_epsilon,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=family.has_qkv_bias,
        qk_layernorm=family.has_qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=sizes.tensor_parallel,
        pipeline_model_parallel_size=sizes.pipeline_parallel,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # no experts here, but variable lengths require it
        calculate_per_token_loss=True,  # losses are sums: nothing is divided before the step
        deallocate_pipeline_outputs=True,
        perform_initialization=False,
        use_cpu_initialization=True,
        deterministic_mode=run.deterministic and is_gpu,
        bias_activation_fusion=is_gpu,
        apply_rope_fusion=is_gpu,
        gradient_accumulation_fusion=False,  # needs a build of apex
        **recompute,
    )


def _mark_split(parameters: exchange.Parameters, table: list[Weight]) -> None:
    """Mark split parameters, so that gradient norms count parameters present on all ranks only once.

    megatron sets these marks only when it initialises random weights, which we skip.
    """
    for weight in table:
        parameter = parameters.get(weight.name)
        if parameter is not None and weight.split is not None and not hasattr(parameter, "tensor_model_parallel"):
            set_tensor_model_parallel_attributes(parameter, True, weight.split, 1)


def _layer_spec(family: Family, *, is_gpu: bool) -> ModuleSpec:
    if is_gpu:
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=family.has_qk_norm)
    spec = get_gpt_layer_local_spec(qk_layernorm=family.has_qk_norm, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    return spec


def _packed(micro: MicroBatch) -> PackedSeqParams:
    device = micro.ids.device
    ends = torch.tensor([0, *micro.lengths], device=device).cumsum(0).to(torch.int32)
    longest = max(micro.lengths)
    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=longest, max_seqlen_kv=longest
    )


def _llama3(inv_freq: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Llama 3.1's longer context: low frequencies are divided by a factor, medium ones by a smoothly smaller one."""
    factor, low, high = (float(scaling[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(scaling["original_max_position_embeddings"]) * inv_freq / (2 * torch.pi)
    smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * inv_freq / factor + smooth * inv_freq


def _check_sizes(family: Family, sizes: MegatronOptions, directory: Path) -> None:
    tensor, pipeline = sizes.tensor_parallel, sizes.pipeline_parallel
    for what, number, parts in (
        ("layers", family.num_layers, pipeline),
        ("attention heads", family.num_heads, tensor),
        ("key-value heads", family.num_kv_heads, tensor),
        ("rows of an MLP", family.ffn_size, tensor),
    ):
        if number % parts:
            key = "pipeline_parallel" if what == "layers" else "tensor_parallel"
            raise SiteError(
                f"{directory} has {number} {what}, which can't be divided evenly by {parts}",
                f"choose a trainer.options.{key} that divides {number}",
            )


def _coordinates(sizes: MegatronOptions) -> Coordinates:
    group = parallel_state.get_tensor_model_parallel_group()
    num_replicas = parallel_state.get_data_parallel_world_size()
    per_stage = sizes.tensor_parallel * num_replicas
    return Coordinates(
        rank=torch.distributed.get_rank(),
        tensor_rank=parallel_state.get_tensor_model_parallel_rank(),
        tensor_ranks=tuple(torch.distributed.get_process_group_ranks(group)),
        tensor_group=group,
        stage=parallel_state.get_pipeline_model_parallel_rank(),
        replica=parallel_state.get_data_parallel_rank(),
        heads=tuple(stage * per_stage for stage in range(sizes.pipeline_parallel)),
    )
