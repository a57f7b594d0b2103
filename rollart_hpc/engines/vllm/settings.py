"""Translates our configuration to vLLM's: environment variables and engine arguments. Owns both; starts nothing.

`engine.options` in the run file may set any engine argument except the reserved ones, which this package relies on.
vLLM's engine core runs in its own process, so its scheduling overlaps with our work.
"""

from __future__ import annotations

import json
import os
from typing import Any

from rollart_hpc.engines.contract import EngineSetup
from rollart_hpc.processes.lifetime import OFFLINE
from rollart_hpc.wire.ports import PORTS_VARIABLE, free_port

BACKEND = "rollart"  # the name of our weight transfer in vLLM's registry
_EXTENSION = "rollart_hpc.engines.vllm.worker.Extension"
_BLOCK_TOKENS = 32  # prefix cache block on CPU: with vLLM's default of 128, short turns would share nothing
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_LEAST_KV_BYTES = 64 << 20
_LEASE_S = 6


def set_environment(setup: EngineSetup) -> None:
    """Call before vLLM is imported. Variables that the user has set are kept."""
    variables = OFFLINE | {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CONFIGURE_LOGGING": "0",  # its messages go to our log
        "VLLM_CACHE_ROOT": str(setup.scratch / "vllm"),
        "VLLM_CONFIG_ROOT": str(setup.scratch / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(setup.scratch / "inductor"),
        "TRITON_CACHE_DIR": str(setup.scratch / "triton"),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads
    }
    if setup.on_cpu:
        variables |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # processes of a run share the cores
            "TORCHDYNAMO_DISABLE": "1",  # else the first request with log-probs compiles for seconds
            "VLLM_HOST_IP": "127.0.0.1",
        }
        if setup.tensor_parallel == 1:  # run the worker in the core's process: a third process only delays the start
            variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    elif setup.kv_directory is not None:
        port = str(free_port(setup.host))
        variables |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": setup.host, "VLLM_NIXL_SIDE_CHANNEL_PORT": port}
    if os.environ.get(PORTS_VARIABLE):  # vLLM takes this port and those above it, whichever are free
        variables["VLLM_PORT"] = str(free_port("127.0.0.1" if setup.on_cpu else setup.host))
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def arguments(setup: EngineSetup) -> dict[str, Any]:
    """vLLM's engine arguments: our defaults, overridden by the user's, overridden by the reserved ones."""
    return _defaults(setup) | dict(setup.config.options) | _reserved(setup)


def _defaults(setup: EngineSetup) -> dict[str, Any]:
    config = setup.config
    running = 1 if setup.deterministic else config.max_running
    values: dict[str, Any] = {
        "dtype": config.dtype,
        "max_num_seqs": running,
        "max_num_batched_tokens": max(config.max_prefill_tokens, running),
        "enable_prefix_caching": not setup.deterministic,
    }
    if setup.on_cpu:
        values |= {
            "enforce_eager": True,
            "block_size": _BLOCK_TOKENS,
            "kv_cache_memory_bytes": _kv_bytes(setup),
        }
    return values


def kv_transfer(setup: EngineSetup) -> dict[str, Any]:
    """Every engine may prefill for others and decode what others prefilled. KV that does not arrive is recomputed.

    NIXL: written from vLLM's documentation (disaggregated prefill with NixlConnector); not tested on GPUs.
    """
    common = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    if not setup.on_cpu:
        # KV that nobody fetches delays the next install until its lease expires.
        return common | {"kv_connector": "NixlConnector", "kv_connector_extra_config": {"kv_lease_duration": _LEASE_S}}
    return common | {
        "kv_connector": "KvFiles",
        "kv_connector_module_path": "rollart_hpc.engines.vllm.kv_files",
        "kv_connector_extra_config": {"directory": str(setup.kv_directory)},
    }


def prefill_params(setup: EngineSetup, key: str) -> dict[str, Any]:
    """Request parameters that make a prompt's KV available to another engine."""
    if setup.on_cpu:
        return {"save": key}
    return {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }


def _reserved(setup: EngineSetup) -> dict[str, Any]:
    """`backend` lists the same keys, so a run file that sets one is refused before anything starts."""
    split = {} if setup.kv_directory is None else {"kv_transfer_config": kv_transfer(setup)}
    return split | {
        "model": str(setup.model),
        "skip_tokenizer_init": True,  # token ids in, token ids out
        "load_format": "dummy",  # weights always come from an install
        "generation_config": "vllm",  # ignore the model's sampling defaults
        "logprobs_mode": "processed_logprobs",  # log-probs of the distribution that was sampled from
        "max_model_len": setup.max_len,
        "seed": setup.seed % (1 << 31),
        "tensor_parallel_size": setup.tensor_parallel,
        "worker_extension_cls": _EXTENSION,
        "weight_transfer_config": {"backend": BACKEND},
    }


def _kv_bytes(setup: EngineSetup) -> int:
    """Room for `kv_slots` trajectories of full length. vLLM's default is half of the machine's memory."""
    model = json.loads((setup.model / "config.json").read_text())
    heads = int(model["num_attention_heads"])
    kv_heads = int(model.get("num_key_value_heads") or heads)
    head_dim = int(model.get("head_dim") or model["hidden_size"] // heads)
    per_token = 2 * int(model["num_hidden_layers"]) * kv_heads * head_dim * _ITEM_BYTES[setup.config.dtype]
    blocks = -(-setup.max_len // _BLOCK_TOKENS) + 1
    return max(_LEAST_KV_BYTES, setup.config.kv_slots * blocks * _BLOCK_TOKENS * per_token // setup.tensor_parallel)
