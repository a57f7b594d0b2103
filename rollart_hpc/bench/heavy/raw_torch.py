"""transformers used directly: `generate` on one batch, without our code. For `bench engine` only."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM

from rollart_hpc.engines.contract import EngineSetup


class RawTorch:
    def __init__(self, setup: EngineSetup) -> None:
        dtype = getattr(torch, setup.config.dtype)
        self._model = AutoModelForCausalLM.from_pretrained(setup.model, dtype=dtype).eval()

    @torch.inference_mode()
    def seconds(self, prompts: Sequence[Sequence[int]], num_new_tokens: int) -> float:
        """Seconds to answer all prompts in one batch, sampling and returning log-probs of the sampled tokens."""
        start_s = time.monotonic()
        ids = torch.tensor(prompts)
        done = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, min_new_tokens=num_new_tokens,
            max_new_tokens=num_new_tokens, output_logits=True, return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
        self._model.compute_transition_scores(done.sequences, done.logits, normalize_logits=True)
        return time.monotonic() - start_s

    def close(self) -> None:
        pass
