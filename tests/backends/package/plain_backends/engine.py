"""An engine without a KV cache: the smallest that fulfils the contract."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

from plain_backends.declarations import EngineOptions
from rollart_hpc.config.backends import read_options
from rollart_hpc.engines.contract import Counters, EngineSetup, Finish, Finished, Request
from rollart_hpc.model_files import end_ids
from rollart_hpc.types import TokenRecord, WeightsId
from rollart_hpc.wire.prefix import prefix_hash


class Live:
    """A request, its prompt, and the tokens sampled so far."""

    def __init__(self, request: Request, prompt: list[int]) -> None:
        self.request, self.prompt = request, prompt
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []


class PlainEngine:
    num_ranks = 1
    kv_tokens = 0  # it has no KV cache
    kv_used_tokens = 0

    def __init__(self, setup: EngineSetup) -> None:
        self.counters = Counters()
        self.device = torch.device("cpu" if setup.on_cpu else "cuda")
        architecture = AutoConfig.from_pretrained(setup.model)
        dtype = getattr(torch, setup.config.dtype)
        self._model = AutoModelForCausalLM.from_config(architecture, dtype=dtype).to(self.device).eval()
        self._tokens_per_step = read_options(EngineOptions, setup.config.options).tokens_per_step
        self._end_ids = end_ids(setup.model)
        self._max_len = setup.max_len
        self._held: dict[str, list[int]] = {}  # tokens of each trajectory
        self._live: dict[int, Live] = {}
        self._weights_id: WeightsId | None = None
        self._suspended = False
        torch.manual_seed(setup.seed)

    # --- requests ------------------------------------------------------------------------------

    def add(self, request: Request) -> bool:
        prompt: list[int] = request.new_ids.tolist()
        if not request.full:
            prefix = self._held.get(request.trajectory, [])[: request.prefix_tokens]
            if len(prefix) < request.prefix_tokens or prefix_hash(np.array(prefix, np.int32)) != request.prefix_hash:
                self.counters.num_prefix_missing += 1
                return False
            prompt = prefix + prompt
        self._live[request.request] = Live(request, prompt)
        return True

    def abort(self, request: int) -> None:
        self._live.pop(request, None)

    def forget(self, trajectories: Iterable[str]) -> None:
        gone = set(trajectories)
        self._live = {name: live for name, live in self._live.items() if live.request.trajectory not in gone}
        for trajectory in gone:
            self._held.pop(trajectory, None)

    def busy(self) -> bool:
        return bool(self._live) and self._weights_id is not None and not self._suspended

    # --- weights -------------------------------------------------------------------------------

    def suspend(self) -> None:
        self._suspended = True

    @torch.inference_mode()
    def install(self, named: Iterable[tuple[str, torch.Tensor]], weights_id: WeightsId) -> None:
        self._weights_id = None  # an install that breaks off leaves weights of two versions
        targets = self._model.state_dict()
        for name, tensor in named:
            targets[name].copy_(tensor)
        self._weights_id = weights_id

    def resume(self) -> None:
        self._suspended = False

    def close(self) -> None:
        pass

    # --- steps ---------------------------------------------------------------------------------

    def step(self) -> list[Finished]:
        if not self.busy():
            return []
        ended = []
        for live in list(self._live.values()):
            finish = self._advance(live)
            if finish:
                del self._live[live.request.request]
                self._held[live.request.trajectory] = live.prompt + live.ids
                ended.append(self._finished(live, finish))
        return ended

    def _advance(self, live: Live) -> Finish | None:
        """Sample a few more tokens; returns how the request ended, if it did."""
        for _ in range(self._tokens_per_step):
            if len(live.prompt) + len(live.ids) >= self._max_len or len(live.ids) >= live.request.max_new_tokens:
                return "length"
            self._sample(live)
            if live.ids[-1] in self._end_ids:
                return "stop"
        return None

    @torch.inference_mode()
    def _sample(self, live: Live) -> None:
        assert self._weights_id is not None
        ids = torch.tensor([live.prompt + live.ids], device=self.device)
        logits = self._model(input_ids=ids, use_cache=False).logits[0, -1].float()
        temperature = live.request.temperature
        logprobs = torch.log_softmax(logits / temperature if temperature else logits, -1)
        chosen = int(torch.multinomial(logprobs.exp(), 1)) if temperature else int(logprobs.argmax())
        live.ids.append(chosen)
        live.logprobs.append(float(logprobs[chosen]))
        live.versions.append(self._weights_id.version)
        self.counters.num_forwards += 1
        self.counters.num_decode_tokens += 1

    def _finished(self, live: Live, finish: Finish) -> Finished:
        self.counters.num_prefill_tokens += len(live.prompt)
        record = TokenRecord(_array(live.ids), np.array(live.logprobs, np.float32), _array(live.versions))
        request = live.request
        return Finished(request.request, request.trajectory, finish, record, len(live.prompt), len(record))


def _array(numbers: list[int]) -> NDArray[np.int32]:
    return np.array(numbers, np.int32)
