"""Checks of engines: what they sample has the trainer's log-probs, before and after an install, and beside an abort."""

from __future__ import annotations

import multiprocessing
import os
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from rollart_hpc.config.schema import EngineConfig
from rollart_hpc.engines.contract import Engine, EngineSetup, Finished, Request
from rollart_hpc.engines.directory import named_tensors
from rollart_hpc.engines.kinds import make_engine
from rollart_hpc.selftest.checks import Here
from rollart_hpc.selftest.heavy.ranks import LIMIT_S, VOCABULARY, make_config, make_model, run_ranks
from rollart_hpc.trainers.kinds import make_trainer
from rollart_hpc.trainers.world import World
from rollart_hpc.types import OBSERVED, TokenRecord, WeightsId

PROMPT, NEW = 40, 16
CLOSE = {"float32": 1e-3, "bfloat16": 0.1}  # mean difference of log-probs


def torch_engine(here: Here) -> dict[str, Any]:
    return _check(here, "torch", "float32")


def vllm_engine(here: Here) -> dict[str, Any]:
    return _check(here, "vllm", "float32" if here.device == "cpu" else "bfloat16")


def _check(here: Here, kind: str, dtype: str) -> dict[str, Any]:
    model = make_model(here.scratch / "model")
    engine = make_engine(_setup(here, kind, dtype))
    try:
        _install(engine, model, 0)
        first = _played(engine, 1)
        _install(engine, model, 1)  # the same weights under another name
        second = _played(engine, 11)
    finally:
        engine.close()
    assert {done.record.versions[0] for done in first.values()} == {0}
    assert {done.record.versions[0] for done in second.values()} == {1}
    records = [_whole(request, done) for request, done in [*first.items(), *second.items()]]
    (expected,) = run_ranks(1, "cpu", here.scratch, partial(_trainer_logprobs, model, records))
    off = [np.abs(record.logprobs - want)[record.sampled] for record, want in zip(records, expected, strict=True)]
    mean = float(np.concatenate(off).mean())
    assert mean <= CLOSE[dtype], f"log-probs differ from the trainer's by {mean:g} on average"
    return {
        "dtype": dtype,
        "mean_off": mean,
        "max_off": float(np.concatenate(off).max()),
        "kv_tokens": engine.kv_tokens,
    }


def _setup(here: Here, kind: str, dtype: str, **more: Any) -> EngineSetup:
    config = EngineConfig(kind=kind, dtype=dtype, device=here.device, max_running=8, kv_slots=8, max_prefill_tokens=128)
    if kind == "vllm" and here.device == "cuda":
        config.options = {"gpu_memory_utilization": 0.3}
    return EngineSetup(
        here.scratch / "model",
        config,
        max_len=128,
        scratch=here.scratch / "cache",
        store=here.scratch / "store",
        **more,
    )


def _install(engine: Engine, model: Path, version: int) -> None:
    engine.suspend()
    engine.install(named_tensors(model), WeightsId(1, version))
    engine.resume()


def _prompt(request: int) -> Any:
    return np.random.default_rng(request).integers(6, VOCABULARY, PROMPT).astype(np.int32)


def _played(engine: Engine, first: int) -> dict[int, Finished]:
    """Four requests, of which one is aborted at once."""
    for request in range(first, first + 4):
        assert engine.add(Request(request, f"t{request}", 0, 0, True, _prompt(request), NEW))
    engine.abort(first + 1)
    found: dict[int, Finished] = {}
    while engine.busy():
        found |= {done.request: done for done in engine.step()}
    assert sorted(found) == [first, first + 2, first + 3], f"requests {sorted(found)} ended"
    engine.forget([f"t{request}" for request in range(first, first + 4)])
    return found


def _whole(request: int, done: Finished) -> TokenRecord:
    zeros, observed = np.zeros(PROMPT, np.float32), np.full(PROMPT, OBSERVED, np.int32)
    sampled = done.record
    return TokenRecord(
        np.concatenate([_prompt(request), sampled.ids]),
        np.concatenate([zeros, sampled.logprobs]),
        np.concatenate([observed, sampled.versions]),
    )


def _trainer_logprobs(model: Path, records: list[TokenRecord], world: World) -> Any:
    return make_trainer(make_config("cpu"), model, world).logprobs(records)


# --- split turns ---------------------------------------------------------------------------------


def split(here: Here) -> dict[str, Any]:
    """Two engines, a GPU each. The second decodes greedily from the first one's KV, and alone: the same tokens."""
    make_model(here.scratch / "model")
    spawn = multiprocessing.get_context("spawn")
    pipes = []
    for gpu in range(2):
        ours, theirs = spawn.Pipe()
        spawn.Process(target=_half, args=(here, gpu, theirs), daemon=False).start()
        pipes.append(ours)
    prefill, decode = pipes
    kv, num_prefilled, _ = _ask(prefill, prefill_only=True)
    assert kv and num_prefilled == PROMPT
    _, num_computed, ids = _ask(decode, kv=kv)
    _, _, alone = _ask(prefill)
    for pipe in pipes:
        pipe.send(None)
    assert ids == alone, f"decoded {ids} from the other's KV, {alone} alone"
    assert num_computed < PROMPT, "the second engine computed the whole prompt itself"
    return {"prompt": PROMPT, "computed_again": num_computed}


def _ask(pipe: Connection, **options: Any) -> Any:
    pipe.send(options)
    assert pipe.poll(LIMIT_S), "an engine did not answer"
    return pipe.recv()


def _half(here: Here, gpu: int, pipe: Connection) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    own = here._replace(scratch=here.scratch / f"engine-{gpu}")
    own.scratch.mkdir()
    (own.scratch / "model").symlink_to(here.scratch / "model")
    engine = make_engine(_setup(own, "vllm", "bfloat16", kv_directory=own.scratch / "kv"))
    _install(engine, here.scratch / "model", 0)
    request = 0
    while (options := pipe.recv()) is not None:
        request += 1
        assert engine.add(Request(request, f"t{request}", 0, 0, True, _prompt(1), NEW, 0.0, **options))
        (done,) = [done for _ in iter(engine.busy, False) for done in engine.step()]
        pipe.send((done.kv, done.num_prefill_tokens, done.record.ids.tolist()))
    engine.close()
