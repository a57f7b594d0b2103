"""Tiny models, an engine on them, and the plain transformers forward they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from rollart_hpc.config.schema import EngineConfig
from rollart_hpc.engines.contract import Finished, Request
from rollart_hpc.engines.torch.engine import TorchEngine
from rollart_hpc.types import WeightsId
from rollart_hpc.wire.prefix import prefix_hash

VOCABULARY = 97
END = 5
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": True,
    "eos_token_id": END, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip


def make_model(kind: str, seed: int) -> Any:
    torch.manual_seed(seed)
    if kind == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(head_dim=16, **SIZES)).eval()
    if kind == "wide":  # heads that vLLM's CPU kernels know
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(head_dim=32, **SIZES)).eval()
    if kind == "windowed":
        config = transformers.Qwen3Config(
            head_dim=16, use_sliding_window=True, sliding_window=9, max_window_layers=1, **SIZES
        )
        return transformers.Qwen3ForCausalLM(config).eval()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


@dataclass
class Family:
    """One architecture with weights of several versions."""

    kind: str
    directory: Path
    models: dict[int, Any]

    def named(self, version: int) -> list[tuple[str, Any]]:
        return list(self.models[version].named_parameters())  # each tensor once: lm_head is tied

    def logprobs(self, version: int, ids: Any, temperature: float = 1.0) -> Any:
        """[t, vocabulary]: log-probs of token t + 1 after ids[: t + 1], by one plain forward over all."""
        with torch.inference_mode():
            logits = self.models[version](torch.as_tensor(np.asarray(ids), dtype=torch.long)[None]).logits[0]
        return torch.log_softmax(logits / (temperature or 1.0), -1).numpy()

    def check(self, prompt: Any, done: Finished, temperature: float = 1.0, tolerance: float = 1e-4) -> None:
        """Each token's log-prob is the plain forward's under its own version; greedy ones are the best there."""
        ids, record = np.concatenate([prompt, done.record.ids]), done.record
        for version in set(record.versions.tolist()):
            expected = self.logprobs(version, ids, temperature)[len(prompt) - 1 : -1]
            own = np.flatnonzero(record.versions == version)
            chosen = expected[own, record.ids[own]]
            np.testing.assert_allclose(record.logprobs[own], chosen, atol=tolerance, rtol=0)
            if temperature == 0:
                assert (chosen >= expected[own].max(-1) - tolerance).all()


@pytest.fixture(scope="session", params=["qwen3", "llama", "windowed"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return _family(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return _family("qwen3", tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return _family("wide", tmp_path_factory.mktemp("wide"))


def _family(kind: str, directory: Path) -> Family:
    models = {version: make_model(kind, seed=version) for version in range(3)}
    models[0].save_pretrained(directory)
    return Family(kind, directory, models)


class Client:
    """An engine with a client that remembers each trajectory's tokens, as an env worker does."""

    def __init__(self, family: Family, engine: Any) -> None:
        self.family = family
        self.engine = engine
        self.tokens: dict[str, Any] = {}
        self.done: dict[int, Finished] = {}
        self.prompts: dict[int, Any] = {}
        self._next = 0

    def install(self, version: int) -> None:
        self.engine.suspend()
        self.engine.install(self.family.named(version), WeightsId(0, version))
        self.engine.resume()

    def turn(
        self,
        trajectory: str,
        new: Any,
        max_new: int = 8,
        temperature: float = 1.0,
        *,
        full: bool = False,
        seed: int = 0,
    ) -> int | None:
        """Ask for a turn; None: prefix missing. The first turn is always full."""
        before = self.tokens.get(trajectory, np.empty(0, np.int32))
        prompt = np.concatenate([before, np.asarray(new, np.int32)])
        is_full = full or not len(before)
        self._next += 1
        request = Request(
            self._next, trajectory, 0 if is_full else len(before), 0 if is_full else prefix_hash(before), is_full,
            prompt if is_full else prompt[len(before) :], max_new, temperature, seed,
        )  # fmt: skip
        if not self.engine.add(request):
            return None
        self.tokens[trajectory] = prompt
        self.prompts[request.request] = prompt
        return request.request

    def step(self) -> None:
        for done in self.engine.step():
            self.done[done.request] = done
            self.tokens[done.trajectory] = np.concatenate([self.prompts[done.request], done.record.ids])

    def run(self, limit: int = 2000) -> None:
        while self.engine.busy():
            self.step()
            limit -= 1
            assert limit, "the engine makes no progress"

    def check(self, request: int, temperature: float = 1.0) -> Finished:
        self.family.check(self.prompts[request], self.done[request], temperature)
        return self.done[request]


class Driver(Client):
    """A client of an engine `torch`."""

    def __init__(self, family: Family, **settings: Any) -> None:
        options = {k: settings.pop(k) for k in ("deterministic", "seed") if k in settings}
        max_len = settings.pop("max_len", 160)
        config = EngineConfig(**{"max_running": 8, "kv_slots": 12, "max_prefill_tokens": 64, **settings})
        super().__init__(family, TorchEngine(family.directory, config, max_len, **options))


@pytest.fixture
def client() -> Callable[[Family, Any], Client]:
    return Client


@pytest.fixture
def drive() -> Callable[..., Driver]:
    return Driver


def some_ids(seed: int, size: int) -> Any:
    """Any ids but the end of a turn."""
    ids = np.random.default_rng(seed).integers(6, VOCABULARY, size)
    return ids.astype(np.int32)


@pytest.fixture
def ids() -> Callable[[int, int], Any]:
    return some_ids
