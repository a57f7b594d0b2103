"""A GGUF file of a tiny Llama, as llama.cpp's converter writes it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from rollart_hpc.models.from_gguf import _OF_LAYER, _OF_MODEL
from tests.envs.models import SMOLLM2

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġt", "he", "Ġthe", "12"]
MERGES = ["Ġ t", "h e", "Ġt he", "1 2"]


def make_llama(tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rope_theta=5000.0, tie_word_embeddings=tied,
        initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def write_gguf(path: Path, model: LlamaForCausalLM, architecture: str = "llama") -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(WORDS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(WORDS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(SMOLLM2)
    for name, tensor in model.state_dict().items():
        if not (config.tie_word_embeddings and name == "lm_head.weight"):
            _add(writer, name, tensor.numpy(), config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, name: str, value: np.ndarray, config: LlamaConfig) -> None:
    back = {theirs: ours for ours, theirs in (_OF_MODEL | _OF_LAYER).items()}
    name = name.removesuffix(".weight")
    if not name.startswith("model.layers."):
        writer.add_tensor(f"{back[name]}.weight", value)
        return
    _, _, layer, kind = name.split(".", 3)
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}.get(kind)
    if heads:  # neighbouring rows are turned together
        rows, columns = value.shape
        value = value.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
    target = f"blk.{layer}.{back[kind]}.weight"
    if value.ndim == 2:  # as the packaged file: matrices in 4 bits
        quantized = gguf.quantize(np.ascontiguousarray(value), gguf.GGMLQuantizationType.Q4_1)
        writer.add_tensor(target, quantized, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    else:
        writer.add_tensor(target, value)
