"""The model on its device: forward, sampling, weights. Owns the torch side of the engine; keeps no request state.

Arrays come in and go out as numpy; only logits and the KV cache stay on the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rollart_hpc.config.schema import EngineConfig
from rollart_hpc.engines.torch.attention import AttentionPlan, Ints
from rollart_hpc.engines.torch.kv import KvCache, KvShape
from rollart_hpc.engines.torch.model import Weights, load_architecture
from rollart_hpc.engines.torch.sampling import sample
from rollart_hpc.errors import SiteError
from rollart_hpc.model_files import end_ids


class Runner:
    def __init__(self, model_dir: Path, config: EngineConfig, seed: int) -> None:
        torch.set_num_threads(config.threads)
        self.device = torch.device(pick_device(config.device))
        if self.device.type == "cuda":
            self.device = torch.device("cuda", torch.cuda.current_device())  # NCCL needs the index
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self.model: Any = load_architecture(model_dir, self.device, self.dtype)
        self.is_end = np.zeros(self.model.config.vocab_size, np.bool_)
        self.is_end[[token for token in end_ids(model_dir) if token < len(self.is_end)]] = True
        self._weights = Weights(self.model)
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def make_cache(self, num_rows: int, max_len: int) -> KvCache:
        shape = KvShape.of(self.model.config, num_rows, max_len)
        try:
            return KvCache(shape, self.device, self.dtype)
        except RuntimeError as error:  # torch reports out of memory this way on every device
            raise SiteError(
                f"no memory on {self.device} for the KV of {num_rows} trajectories of {max_len} tokens: {error}",
                "lower engine.kv_slots or the tasks' max_tokens",
            ) from None

    def install(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._weights.install(named)

    def seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    def forward(self, plan: AttentionPlan, ids: NDArray[np.int32], wanted: Ints | None) -> torch.Tensor:
        """Logits [token, vocabulary] of the packed tokens at the indices `wanted`; None: of all tokens."""
        out = self.model(
            input_ids=torch.from_numpy(ids).to(self.device)[None],
            position_ids=plan.device_positions[None],
            use_cache=False,
            logits_to_keep=0 if wanted is None else torch.from_numpy(wanted).to(self.device),
            plan=plan,  # passed to every layer's `row_attention`
        )
        return out.logits[0]

    def sample(
        self, logits: torch.Tensor, temperature: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """One id and log-prob for each row of logits."""
        is_greedy = temperature == 0
        uniforms = None
        if not is_greedy.all():
            uniforms = torch.rand(len(logits), generator=self._generator, device=self.device, dtype=torch.float64)
        temperatures = torch.from_numpy(temperature).to(self.device)
        ids, logprobs = sample(logits, temperatures, uniforms, bool(is_greedy.any()))
        return ids.cpu().numpy(), logprobs.cpu().numpy()


def pick_device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted
