"""Converts a GGUF file to a Hugging Face directory in float32. Knows the names and shapes of both formats.

    llama.*, tokenizer.* of the file     config.json, generation_config.json
    tensors, dequantized                 model.safetensors
    tokenizer.ggml.*                     tokenizer.json, tokenizer_config.json, chat_template.jinja

Reads the Llama architecture with a byte-level BPE tokenizer. Needs neither torch nor transformers. Where transformers'
own loader differs from llama.cpp, it follows llama.cpp: the file's `tokenizer.ggml.pre` decides whether numbers are
split into digits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rollart_hpc.errors import UserError

if TYPE_CHECKING:
    from gguf import GGUFReader

_SPECIAL = 3  # llama.cpp's token type for control tokens
_OF_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_INDIVIDUAL_DIGITS = ("smollm", "starcoder", "refact", "command-r")  # tokenizers that split numbers into digits


class ModelShape(NamedTuple):
    heads: int
    kv_heads: int
    head_dim: int


def write_directory(source: Path, directory: Path) -> None:
    """Write the model of the GGUF file `source` into the existing `directory`."""
    from safetensors.numpy import save_file

    reader = open_gguf(source)
    config = _config(reader)
    shape = ModelShape(config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"])
    save_file(dict(_tensors(reader, shape)), directory / "model.safetensors", metadata={"format": "pt"})
    _write_json(directory / "config.json", config)
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(directory / "generation_config.json", ends)
    _write_tokenizer(reader, directory)


def open_gguf(source: Path) -> GGUFReader:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(source)
    except (ValueError, IndexError, KeyError) as error:
        raise UserError(f"{source} is not a GGUF file: {error}", "check the path") from None
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise UserError(f"{source} has a model of architecture {architecture}", "use a file with a llama model")
    return reader


def _field(reader: GGUFReader, name: str, default: Any = None) -> Any:
    field = reader.get_field(name)
    return default if field is None else field.contents()


def _config(reader: GGUFReader) -> dict[str, Any]:
    heads, width = _field(reader, "llama.attention.head_count"), _field(reader, "llama.embedding_length")
    tokens = _field(reader, "tokenizer.ggml.tokens")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": _field(reader, "llama.vocab_size", len(tokens)),
        "hidden_size": width,
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv", heads),
        "head_dim": _field(reader, "llama.rope.dimension_count", width // heads),
        "hidden_act": "silu",
        "max_position_embeddings": _field(reader, "llama.context_length"),
        "rms_norm_eps": float(f"{_field(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": _field(reader, "llama.rope.freq_base", 10000.0),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _field(reader, "tokenizer.ggml.padding_token_id"),
        "use_cache": True,
    }


# --- tensors ---------------------------------------------------------------------------------------


def _tensors(reader: GGUFReader, shape: ModelShape) -> Iterator[tuple[str, NDArray[np.float32]]]:
    from gguf import dequantize

    for tensor in reader.tensors:
        value = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        value = value.reshape([int(n) for n in reversed(tensor.shape)])
        kind = tensor.name.split(".")[-2]
        if kind in ("attn_q", "attn_k"):
            value = _halves_apart(value, shape.heads if kind == "attn_q" else shape.kv_heads)
        yield _name(tensor.name), np.ascontiguousarray(value)


def _name(name: str) -> str:
    match name.split("."):
        case [kind, "weight"] if kind in _OF_MODEL:
            return f"{_OF_MODEL[kind]}.weight"
        case ["blk", layer, kind, "weight"] if kind in _OF_LAYER:
            return f"model.layers.{layer}.{_OF_LAYER[kind]}.weight"
    raise UserError(f"tensor {name} is not part of a Llama model", "use a file with a plain Llama model")


def _halves_apart(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp rotates neighbouring rows of a head together, transformers rows that are half a head apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


# --- tokenizer -------------------------------------------------------------------------------------


def _write_tokenizer(reader: GGUFReader, directory: Path) -> None:
    model = _field(reader, "tokenizer.ggml.model")
    if model != "gpt2":
        raise UserError(f"the file's tokenizer is of kind {model}", "use a file with a byte-level BPE tokenizer (gpt2)")
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in _field(reader, "tokenizer.ggml.merges")]
    types = _field(reader, "tokenizer.ggml.token_type", [])
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if _field(reader, "tokenizer.ggml.pre") in _INDIVIDUAL_DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_only])
    else:
        tokenizer.pre_tokenizer = bytes_only
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types) if kind == _SPECIAL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(reader, tokens))
    template = _field(reader, "tokenizer.chat_template")
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)


def _tokenizer_config(reader: GGUFReader, tokens: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings["model_max_length"] = _field(reader, "llama.context_length")
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = _field(reader, f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            settings[f"{name}_token"] = tokens[number]
    return settings


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
