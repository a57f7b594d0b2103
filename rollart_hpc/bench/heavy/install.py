"""Measures how long an install blocks generation, compared with a memcpy of the same bytes. For `bench weights` only.

    python -m rollart_hpc.bench.heavy.install MODEL_DIR PAIRS

Makes a random Qwen3 of about 90 MB, has the torch engine decode 8 requests of 128 tokens, and installs weights in the
middle of them. The KV rebuild is the first step after that; it counts on both sides. Prints a line of JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from rollart_hpc.config.schema import EngineConfig
from rollart_hpc.engines.contract import Request
from rollart_hpc.engines.torch.engine import TorchEngine
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.store import NodeStore

REQUESTS, PROMPT = 8, 128


def make_model(directory: Path) -> list[tuple[str, torch.Tensor]]:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=4096, hidden_size=512, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, tie_word_embeddings=True, eos_token_id=0,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(directory)
    return [(name, tensor.detach()) for name, tensor in model.named_parameters()]


def main(directory: str, pairs: str) -> None:
    root = Path(directory)
    named = make_model(root)
    engine = TorchEngine(root, EngineConfig(kv_slots=REQUESTS, max_running=REQUESTS), 1024)
    store = NodeStore(root.parent / "store", "bench")
    store.write(WeightsId(1, 0), named, 32 << 20)
    memory = [torch.empty_like(tensor) for _, tensor in named]
    rows: list[tuple[float, float, float]] = []
    for number in range(int(pairs) + 1):
        stored = store.open(WeightsId(1, 0))
        stored.verify()  # as `engines.install` does, in parallel with generation
        rows.append((_memcpy_s(stored, memory), *_install_s(engine, stored, number)))
    _tell(rows[1:], sum(tensor.numel() * tensor.element_size() for _, tensor in named))


def _memcpy_s(stored: object, memory: list[torch.Tensor]) -> float:
    sources = [tensor for _, tensor in stored]  # type: ignore[attr-defined]
    start_s = time.monotonic()
    for target, source in zip(memory, sources, strict=True):
        target.copy_(source)
    return time.monotonic() - start_s


def _install_s(engine: TorchEngine, stored: object, number: int) -> tuple[float, float]:
    """Seconds of the install, and of the first step after it, which rebuilds the KV of all running requests."""
    if number == 0:
        engine.suspend()
        engine.install(stored, WeightsId(1, 0))  # type: ignore[arg-type]
        engine.resume()
        for i in range(REQUESTS):
            ids = np.arange(1 + i, 1 + i + PROMPT, dtype=np.int32)
            engine.add(Request(i, f"t{i}", 0, 0, True, ids, 800))
    for _ in range(3):
        engine.step()
    start_s = time.monotonic()
    engine.suspend()
    engine.install(stored, WeightsId(1, number))  # type: ignore[arg-type]
    engine.resume()
    installed_s = time.monotonic()
    engine.step()
    return installed_s - start_s, time.monotonic() - installed_s


def _tell(rows: list[tuple[float, float, float]], num_bytes: int) -> None:
    ratio = statistics.median((install + rebuild) / (memcpy + rebuild) for memcpy, install, rebuild in rows)
    memcpy, install, rebuild = (1000 * statistics.median(column) for column in zip(*rows, strict=True))
    told = {"exposed_to_memcpy": ratio, "install_ms": install, "memcpy_ms": memcpy, "rebuild_ms": rebuild}
    print(json.dumps({**told, "model_mb": num_bytes / 1e6}))


if __name__ == "__main__":
    main(*sys.argv[1:])
