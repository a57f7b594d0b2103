"""Engine `vllm`: our contract over vLLM. Owns the tokens of each trajectory and how an output becomes `Finished`.

vLLM keys its KV by the content of whole blocks, not by trajectory. A later turn sends us its delta, we send vLLM the
whole prompt, and its prefix cache finds the blocks again. So this class holds only the ids of each trajectory.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rollart_hpc.engines.contract import Counters, EngineSetup, Finished, Request
from rollart_hpc.engines.vllm.handles import Handle, remove_kv, usable_params
from rollart_hpc.engines.vllm.settings import prefill_params, set_environment
from rollart_hpc.engines.vllm.updates import from_collective, from_store
from rollart_hpc.model_files import end_ids
from rollart_hpc.types import TokenRecord, WeightsId
from rollart_hpc.weights.direct import DirectTarget
from rollart_hpc.weights.store import NodeStore, StoredWeights
from rollart_hpc.wire.prefix import prefix_hash

log = logging.getLogger(__name__)

_BUCKET_BYTES = 256 << 20  # for weights that are not in shared memory yet


def make(setup: EngineSetup) -> VllmEngine:
    os.umask(0o077)  # keep the files that vLLM writes private too
    return VllmEngine(setup, NodeStore(setup.store, setup.inbox))


@dataclass(slots=True, eq=False)
class Live:
    """A request in vLLM."""

    request: Request
    prompt: NDArray[np.int32]
    key: str = ""  # key of the KV that it passes to another engine
    takes_kv: bool = False
    waits: bool = False  # removed from vLLM until the install ends
    num_rebuilt_tokens: int = 0  # tokens run again because an install dropped their KV


class VllmEngine:
    def __init__(self, setup: EngineSetup, inbox: NodeStore) -> None:
        """`inbox`: store for weights that arrive as tensors, so that the workers can map them."""
        set_environment(setup)
        from rollart_hpc.engines.vllm.core import VllmCore, sampling

        self._sampling = sampling
        self.counters = Counters()
        self.device = None  # every vLLM worker joins the collective itself
        self.num_ranks = setup.tensor_parallel
        self.weights_id: WeightsId | None = None
        self._setup = setup
        if setup.kv_directory is not None:
            setup.kv_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._core = VllmCore(setup, self.counters)
        self._inbox = inbox
        self._max_len = setup.max_len
        self._max_held = max(setup.config.kv_slots, setup.config.max_running)
        self._deterministic = setup.deterministic
        self._end_ids = sorted(end_ids(setup.model))
        self._held: dict[str, NDArray[np.int32]] = {}  # least recently used first
        self._live: dict[int, Live] = {}
        self._ended: list[Finished] = []
        self._suspended = False
        self._handed: deque[str] = deque()  # keys of KV made for other engines

    @property
    def kv_tokens(self) -> int:
        return self._core.kv_tokens

    @property
    def kv_used_tokens(self) -> int:
        return self._core.kv_used_tokens

    # --- requests ------------------------------------------------------------------------------

    def add(self, request: Request) -> bool:
        for live in self._of({request.trajectory}):
            self.abort(live.request.request)  # superseded: a trajectory has one request at a time
        prompt = request.new_ids if request.full else self._extended(request)
        if prompt is None:
            self.counters.num_prefix_missing += 1
            return False
        if not self._is_possible(request, prompt):
            self._ended.append(Finished(request.request, request.trajectory, "length", TokenRecord.empty(), 0, 0))
            return True
        self._hold(request.trajectory, prompt)
        self._live[request.request] = live = Live(request, prompt)
        self._start(live)
        return True

    def _start(self, live: Live) -> None:
        request = live.request
        limit = 1 if request.prefill_only else min(request.max_new_tokens, self._max_len - len(live.prompt))
        seed = request.seed if self._deterministic else None
        params = self._sampling(limit, request.temperature, self._end_ids, seed, self._kv_params(live))
        self._core.add(request.request, live.prompt.tolist(), params)

    def _kv_params(self, live: Live) -> dict[str, Any] | None:
        request = live.request
        live.takes_kv = False
        if request.prefill_only and self._setup.kv_directory is not None:
            live.key = secrets.token_hex(16)
            return prefill_params(self._setup, live.key)
        if not request.kv:
            return None
        params = usable_params(request.kv, self.weights_id)
        live.takes_kv = params is not None
        self.counters.num_kv_refused += params is None
        return params

    def _extended(self, request: Request) -> NDArray[np.int32] | None:
        """The whole prompt of a turn that sends only its delta. None: we don't hold its prefix."""
        held = self._held.get(request.trajectory)
        if held is None or len(held) < request.prefix_tokens:
            return None
        prefix = held[: request.prefix_tokens]
        if prefix_hash(prefix) != request.prefix_hash:
            return None
        return np.concatenate([prefix, request.new_ids])

    def _is_possible(self, request: Request, prompt: NDArray[np.int32]) -> bool:
        """False: there is no room for a new token, or the prompt is empty or invalid. The turn then ends empty."""
        is_known = not len(prompt) or (prompt.min() >= 0 and prompt.max() < self._core.vocabulary)
        if not is_known:
            log.error("request %d of %s has ids outside the vocabulary", request.request, request.trajectory)
        return bool(is_known) and 0 < len(prompt) < self._max_len and request.max_new_tokens > 0

    def abort(self, request: int) -> None:
        if self._live.pop(request, None) is not None:
            self._core.abort(request)

    def forget(self, trajectories: Iterable[str]) -> None:
        gone = set(trajectories)
        for live in self._of(gone):
            self.abort(live.request.request)
        for trajectory in gone:
            self._held.pop(trajectory, None)

    def busy(self) -> bool:
        can_run = self.weights_id is not None and not self._suspended
        return bool(self._ended) or (can_run and bool(self._live))

    def _of(self, trajectories: set[str]) -> list[Live]:
        return [live for live in self._live.values() if live.request.trajectory in trajectories]

    def _hold(self, trajectory: str, ids: NDArray[np.int32]) -> None:
        self._held.pop(trajectory, None)
        self._held[trajectory] = ids
        if len(self._held) > self._max_held:
            del self._held[next(iter(self._held))]
            self.counters.num_evicted += 1

    # --- weights -------------------------------------------------------------------------------

    def suspend(self) -> None:
        """vLLM finishes its current step; the tokens of that step carry the old version's number.

        Requests that still wait for KV of the old weights are removed from vLLM: that KV is useless now, and vLLM
        can't drop its cache while KV is being loaded into it.
        """
        self._suspended = True
        for live in self._live.values():
            if live.takes_kv and not live.waits and not self._core.num_done(live.request.request):
                self._core.abort(live.request.request)
                live.waits = True
        self._core.pause()

    def install(self, named: Iterable[tuple[str, torch.Tensor]], weights_id: WeightsId) -> None:
        """Workers map the node's store or join the collective. Other weights are written to shared memory first."""
        assert self._suspended
        self.weights_id = None  # a failure from here on leaves weights of two versions
        if isinstance(named, StoredWeights):
            self._core.install(weights_id, from_store(named.directory, weights_id))
        elif isinstance(named, DirectTarget):
            named.num_bytes = self._core.install(weights_id, from_collective(named, self.num_ranks))
        else:
            self._take_in(named, weights_id)
        self.weights_id = weights_id
        for live in self._live.values():  # all KV is gone
            num_done = 0 if live.waits else self._core.num_done(live.request.request)
            live.num_rebuilt_tokens += num_done
            self.counters.num_prefill_tokens += num_done

    def _take_in(self, named: Iterable[tuple[str, torch.Tensor]], weights_id: WeightsId) -> None:
        try:
            self._inbox.write(weights_id, named, _BUCKET_BYTES)
            stored = self._inbox.open(weights_id)
            self._core.install(weights_id, from_store(stored.directory, weights_id))
        finally:
            self._inbox.discard(weights_id)

    def resume(self) -> None:
        self._suspended = False
        if self.weights_id is None:
            return
        self._core.resume()
        for live in self._live.values():
            if live.waits:
                live.waits = False
                self._start(live)

    # --- steps ---------------------------------------------------------------------------------

    def step(self) -> list[Finished]:
        if self._live and self.weights_id is not None and not self._suspended:
            for output in self._core.step():
                live = self._live.pop(int(output.request_id), None)
                if live is not None:
                    self._ended.append(self._finished(live, output))
        ended, self._ended = self._ended, []
        return ended

    def _finished(self, live: Live, output: Any) -> Finished:
        completion, times = output.outputs[0], output.metrics
        record = _record(completion)
        request = live.request
        if request.prefill_only:
            return self._prefilled(live, output, int(record.versions[0]))
        self._hold(request.trajectory, np.concatenate([live.prompt, record.ids]))
        return Finished(
            request=request.request,
            trajectory=request.trajectory,
            finish="stop" if completion.finish_reason == "stop" else "length",
            record=record,
            num_prefill_tokens=len(live.prompt) - (output.num_cached_tokens or 0) + live.num_rebuilt_tokens,
            num_decode_tokens=len(record),
            queue_s=max(0.0, times.scheduled_ts - times.queued_ts),
            prefill_s=max(0.0, times.first_token_ts - times.scheduled_ts),
            decode_s=max(0.0, times.last_token_ts - times.first_token_ts),
        )

    def _prefilled(self, live: Live, output: Any, version: int) -> Finished:
        """The token that vLLM sampled is discarded: the engine that decodes samples it under its own weights."""
        request, times = live.request, output.metrics
        assert self.weights_id is not None
        handle = Handle(self.weights_id.attempt, version, output.kv_transfer_params or {})
        self._hand_on(live.key)
        return Finished(
            request=request.request,
            trajectory=request.trajectory,
            finish="length",
            record=TokenRecord.empty(),
            num_prefill_tokens=len(live.prompt) - (output.num_cached_tokens or 0) + live.num_rebuilt_tokens,
            num_decode_tokens=0,
            kv=handle.encode(),
            queue_s=max(0.0, times.scheduled_ts - times.queued_ts),
            prefill_s=max(0.0, times.first_token_ts - times.scheduled_ts),
        )

    def _hand_on(self, key: str) -> None:
        """Remember the key, and delete the oldest KV file so that files nobody fetches don't pile up."""
        self._handed.append(key)
        if len(self._handed) > self._max_held and self._setup.kv_directory is not None:
            remove_kv(self._setup.kv_directory, [self._handed.popleft()])

    def close(self) -> None:
        """Stop vLLM's processes."""
        self._core.close()
        self._inbox.remove()


def _record(completion: Any) -> TokenRecord:
    """vLLM labels spans of tokens with the version that sampled them."""
    ids = np.asarray(completion.token_ids, np.int32)
    versions = np.empty(len(ids), np.int32)
    for span in completion.weight_versions:
        versions[span.start : span.end] = int(span.version)
    return TokenRecord(ids, np.asarray(completion.logprobs.logprobs, np.float32), versions)
