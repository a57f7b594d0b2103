"""Engine `torch`: continuous batching with a KV cache over any transformers causal LM, on CPU or one GPU.

Why not transformers' own continuous batching (5.19): it frees a request's pages when the request ends and shares only
whole hashed pages with a later one, so a later turn prefills tokens again. It keeps the old KV when weights change
under `pause()`, so a request that is running during an install continues with KV of the old weights. It has no version
per token, and its scheduler loops in Python over every request at every token.

A step admits waiting requests, runs one forward over the packed new tokens of all running rows, samples, and retires
finished requests. Rows are kept in this order, so that every part of a batch is a slice:

    [ decoding: one token each | prefilling, as they get budget | idle and free rows, in any order ]
    0                          num_decoding                     num_running

Owns the scheduling. `rows` owns the rows and their contents, `runner` the model and its device.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rollart_hpc.config.schema import EngineConfig
from rollart_hpc.engines.contract import Counters, EngineSetup, Finish, Finished, Request
from rollart_hpc.engines.torch.attention import make_plan
from rollart_hpc.engines.torch.rows import CachedTrajectory, Rows
from rollart_hpc.engines.torch.runner import Runner
from rollart_hpc.types import TokenRecord, WeightsId

log = logging.getLogger(__name__)


def make(setup: EngineSetup) -> TorchEngine:
    return TorchEngine(setup.model, setup.config, setup.max_len, deterministic=setup.deterministic, seed=setup.seed)


@dataclass(slots=True, eq=False)
class Live:
    """A request in flight. `held` is None until it gets a row."""

    request: Request
    held: CachedTrajectory | None
    added_s: float
    admitted_s: float = 0.0
    first_s: float = 0.0


class TorchEngine:
    def __init__(
        self, model_dir: Path, config: EngineConfig, max_len: int, *, deterministic: bool = False, seed: int = 0
    ) -> None:
        """`max_len`: maximum tokens per trajectory. Deterministic: one request per forward, no KV of earlier turns."""
        self.runner = Runner(model_dir, config, seed)
        self.device = self.runner.device
        self.num_ranks = 1
        self.counters = Counters()
        self.rows = Rows(self.runner.make_cache(config.kv_slots, max_len), self.counters)
        self.weights_id: WeightsId | None = None
        self._deterministic = deterministic
        self._max_running = 1 if deterministic else min(config.max_running, config.kv_slots)
        self._max_prefill = config.max_prefill_tokens
        self._waiting: deque[Live] = deque()
        self._live: dict[int, Live] = {}
        self._ended: list[Finished] = []
        self._suspended = False
        self.num_decoding = self.num_running = 0

    @property
    def kv_tokens(self) -> int:
        return self.rows.num_tokens

    @property
    def kv_used_tokens(self) -> int:
        return self.rows.num_used_tokens

    # --- requests ------------------------------------------------------------------------------

    def add(self, request: Request) -> bool:
        held = self.rows.get(request.trajectory)
        for live in self._of({request.trajectory}):
            self.abort(live.request.request)  # superseded: a trajectory has one request at a time
        is_held = held is not None and self.rows.holds(held, request.prefix_tokens, request.prefix_hash)
        if not request.full and not is_held:
            self.counters.num_prefix_missing += 1
            return False
        keep = 0 if request.full else request.prefix_tokens
        if not self._is_possible(request, keep):
            self._ended.append(Finished(request.request, request.trajectory, "length", TokenRecord.empty(), 0, 0))
            return True
        live = Live(request, held, time.monotonic())
        if held is not None:
            held.live = live
            self.rows.extend(held, keep, request.new_ids)
        self._live[request.request] = live
        self._waiting.append(live)
        return True

    def _is_possible(self, request: Request, keep: int) -> bool:
        """False: there is no room for a new token, or the prompt is empty or invalid. The turn then ends empty."""
        ids, num_tokens = request.new_ids, keep + len(request.new_ids)
        is_known = not len(ids) or (ids.min() >= 0 and ids.max() < len(self.runner.is_end))
        if not is_known:
            log.error("request %d of %s has ids outside the vocabulary", request.request, request.trajectory)
        return bool(is_known) and 0 < num_tokens < self.rows.max_len and request.max_new_tokens > 0

    def abort(self, request: int) -> None:
        live = self._live.pop(request, None)
        if live is None:
            return
        if live.admitted_s and live.held is not None:
            self._retire(live.held)
        else:
            self._waiting.remove(live)
            if live.held is not None:
                live.held.live = None

    def forget(self, trajectories: Iterable[str]) -> None:
        gone = set(trajectories)
        for live in self._of(gone):
            self.abort(live.request.request)
        for trajectory in gone:
            held = self.rows.get(trajectory)
            if held is not None:
                self.rows.release(held)

    def _of(self, trajectories: set[str]) -> list[Live]:
        return [live for live in self._live.values() if live.request.trajectory in trajectories]

    def busy(self) -> bool:
        can_run = self.weights_id is not None and not self._suspended
        return bool(self._ended) or (can_run and bool(self._live))

    # --- weights -------------------------------------------------------------------------------

    def suspend(self) -> None:
        self._suspended = True

    @torch.inference_mode()
    def install(self, named: Iterable[tuple[str, torch.Tensor]], weights_id: WeightsId) -> None:
        """A failed install leaves a mix of weights, so nothing is generated until an install succeeds."""
        assert self._suspended
        self.weights_id = None
        self.rows.invalidate()
        self.num_decoding = 0
        self.runner.install(named)
        self.weights_id = weights_id

    def resume(self) -> None:
        self._suspended = False

    def close(self) -> None:
        """Nothing to stop: the engine has no other process or thread."""

    # --- one step ------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        if self.weights_id is not None and not self._suspended:
            self._admit()
            if self.num_running:
                self._forward()
        ended, self._ended = self._ended, []
        return ended

    def _admit(self) -> None:
        """Move waiting requests into the running block while they fit into this forward."""
        backlog = int((self.rows.tokens - self.rows.cached)[self.num_decoding : self.num_running].sum())
        passed: list[Live] = []
        while self._waiting and self.num_running < self._max_running and backlog < self._max_prefill:
            live = self._waiting.popleft()
            if not self._give_row(live):
                passed.append(live)
                continue
            held = live.held
            assert held is not None
            self._start(live, held)
            backlog += int(self.rows.tokens[held.row] - self.rows.cached[held.row])
        self._waiting.extendleft(reversed(passed))

    def _give_row(self, live: Live) -> bool:
        """False: not now. All rows have requests, or a prompt with the same beginning is being prefilled."""
        if live.held is not None:
            return True
        ids = live.request.new_ids
        donor = self.rows.donor(ids, self.num_running)
        if donor.is_worth_waiting_for:
            return False
        held = self.rows.take(live.request.trajectory, preferred=self.num_running)
        if held is None:
            return False
        self.rows.share(donor, held)
        self.rows.extend(held, 0, ids)
        live.held, held.live = held, live
        return True

    def _start(self, live: Live, held: CachedTrajectory) -> None:
        rows, request = self.rows, live.request
        rows.exchange(held.row, self.num_running)
        self.num_running += 1
        row = held.row
        rows.limit[row] = min(int(rows.tokens[row]) + request.max_new_tokens, rows.max_len)
        rows.temperature[row] = request.temperature
        rows.prefilled[row] = 0
        if self._deterministic:
            rows.cached[row] = 0
            self.runner.seed(request.seed)
        live.admitted_s = time.monotonic()

    def _forward(self) -> None:
        rows, decoding = self.rows, self.num_decoding
        counts = self._share_budget()
        num_rows = len(counts)
        starts = rows.cached[:num_rows].copy()
        plan = make_plan(rows.cache, starts, counts, decoding)
        num_complete = int((starts + counts == rows.tokens[:num_rows]).sum())  # the budget cuts only the last one short
        wanted = np.cumsum(counts)[:num_complete] - 1 if num_rows > decoding else None
        logits = self.runner.forward(plan, rows.ids[plan.rows, plan.positions], wanted)
        rows.cached[:num_rows] += counts
        rows.prefilled[decoding:num_rows] += counts[decoding:]
        self.counters.num_forwards += 1
        self.counters.num_prefill_tokens += int(counts[decoding:].sum())
        if num_complete:
            self._append(logits, num_complete)

    def _share_budget(self) -> NDArray[np.int64]:
        """Tokens to run in each row of this forward: one if it decodes, else what the budget allows, in row order."""
        rows, decoding = self.rows, self.num_decoding
        counts = rows.tokens[: self.num_running] - rows.cached[: self.num_running]
        if self.num_running > decoding:
            wanted = counts[decoding:]
            before = np.cumsum(wanted) - wanted
            np.clip(self._max_prefill - before, 0, wanted, out=counts[decoding:])
            counts = counts[: np.flatnonzero(counts)[-1] + 1]
        return counts

    def _append(self, logits: torch.Tensor, num_sampled: int) -> None:
        """Sample a token for each of the first rows, and finish the rows that are done."""
        rows, these = self.rows, np.arange(num_sampled)
        ids, logprobs = self.runner.sample(logits, rows.temperature[:num_sampled])
        position = rows.tokens[:num_sampled].copy()
        rows.ids[these, position] = ids
        rows.logprobs[these, position] = logprobs
        assert self.weights_id is not None
        rows.versions[these, position] = self.weights_id.version
        rows.tokens[:num_sampled] += 1
        self.counters.num_decode_tokens += num_sampled
        self._note_first(num_sampled)
        is_end = self.runner.is_end[ids]
        is_done = is_end | (position + 1 >= rows.limit[:num_sampled])
        for held, stopped in [(rows.held[i], is_end[i]) for i in np.flatnonzero(is_done)]:
            assert held is not None
            self._finish(held, "stop" if stopped else "length")

    def _note_first(self, num_sampled: int) -> None:
        """Rows whose prefill is complete decode from now on. They directly follow the decoding rows."""
        now = time.monotonic()
        for row in range(self.num_decoding, num_sampled):
            held = self.rows.held[row]
            assert held is not None
            held.live.first_s = held.live.first_s or now
        self.num_decoding = num_sampled

    # --- the end of a request ------------------------------------------------------------------

    def _finish(self, held: CachedTrajectory, finish: Finish) -> None:
        rows, row, live = self.rows, held.row, held.live
        record = rows.record(held)
        now = time.monotonic()
        self._ended.append(
            Finished(
                request=live.request.request,
                trajectory=held.trajectory,
                finish=finish,
                record=record,
                num_prefill_tokens=int(rows.prefilled[row]),
                num_decode_tokens=len(record),
                queue_s=live.admitted_s - live.added_s,
                prefill_s=live.first_s - live.admitted_s,
                decode_s=now - live.first_s,
            )
        )
        del self._live[live.request.request]
        self._retire(held)

    def _retire(self, held: CachedTrajectory) -> None:
        """Take a row out of the running block. Its trajectory stays in the cache, idle."""
        held.live = None
        self.rows.touch(held)
        hole = held.row
        free = self.rows.free_row()
        if free is not None and hole != self.num_running - 1:
            self.rows.exchange(hole, free)  # parked in a free row: filling the hole is then a copy, not a swap
        if hole < self.num_decoding:
            self.num_decoding -= 1
            self.rows.exchange(hole, self.num_decoding)
            hole = self.num_decoding
        self.num_running -= 1
        self.rows.exchange(hole, self.num_running)
