"""The part of vLLM that we use: start, requests, steps, weights, shutdown. Owns vLLM's AsyncLLM and its quirks.

AsyncLLM runs on an event loop in its own thread, and its engine core runs in another process, which never waits for
us. One thread drives our contract in steps: `step` waits for the result of the core's next scheduler step.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import threading
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs.engine import tokens_input
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from rollart_hpc.engines.contract import Counters, EngineSetup
from rollart_hpc.engines.vllm.settings import arguments
from rollart_hpc.engines.vllm.updates import INCOMPLETE, Update
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.types import WeightsId

T = TypeVar("T")

_STEP_S = 0.1  # while the core only waits for another engine's KV, we must still read the controller's messages


class StepCounter:
    """Replaces vLLM's loggers: adds what each step ran to our counters."""

    def __init__(self, counters: Counters, moved: threading.Event) -> None:
        self._counters, self._moved = counters, moved
        self.kv_usage = 0.0  # share of the cache held by running requests; blocks kept for later turns count as free

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is not None:
            self.kv_usage = scheduler_stats.kv_cache_usage
        if iteration_stats is not None:
            self._counters.num_forwards += 1
            self._counters.num_decode_tokens += iteration_stats.num_generation_tokens
            self._counters.num_prefill_tokens += iteration_stats.prompt_token_stats.computed
        self._moved.set()


class VllmCore:
    def __init__(self, setup: EngineSetup, counters: Counters) -> None:
        logging.getLogger("vllm").setLevel(logging.WARNING)
        self._moved = threading.Event()  # a step or a request has ended
        self._ended: deque[RequestOutput | BaseException] = deque()
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._aborted: set[asyncio.Task[None]] = set()  # vLLM does not know of these yet
        self._names: dict[int, str] = {}  # vLLM's names for the requests it has accepted
        self._llm: Any = AsyncLLM.from_engine_args(engine_args(setup))
        self._steps = StepCounter(counters, self._moved)
        self._llm.logger_manager = self._steps  # vLLM reads outputs only from the first request on
        self.kv_tokens = _kv_tokens(self._llm.vllm_config.cache_config)
        self.vocabulary = int(self._llm.model_config.get_vocab_size())
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        self._call(self._llm.get_supported_tasks())  # otherwise all of the first requests ask for them at once
        self.pause()  # until the first install

    @property
    def kv_used_tokens(self) -> int:
        return round(self._steps.kv_usage * self.kv_tokens)

    # --- requests ------------------------------------------------------------------------------

    def add(self, request: int, ids: Sequence[int], params: SamplingParams) -> None:
        self._loop.call_soon_threadsafe(self._begin, request, ids, params)

    def abort(self, request: int) -> None:
        self._loop.call_soon_threadsafe(self._end, request)

    def num_done(self, request: int) -> int:
        """Tokens of a request whose KV an install discards; 0 until a token is sampled."""
        state = self._llm.output_processor.request_states.get(self._names.get(request))
        num_sampled = state.detokenizer.num_output_tokens() if state is not None else 0
        return state.prompt_len + num_sampled if num_sampled else 0

    def step(self) -> list[RequestOutput]:
        """Finished requests. Waits for the next scheduler step if there are none yet."""
        if not self._ended:
            self._moved.wait(_STEP_S)
        self._moved.clear()
        outputs = []
        while self._ended:
            ended = self._ended.popleft()
            if isinstance(ended, BaseException):
                raise ended
            outputs.append(ended)
        return outputs

    def _begin(self, request: int, ids: Sequence[int], params: SamplingParams) -> None:
        self._requests[request] = task = self._loop.create_task(self._answer(request, ids, params))
        task.add_done_callback(lambda task: self._over(request, task))

    def _end(self, request: int) -> None:
        if task := self._requests.get(request):
            self._aborted.add(task)
            task.cancel()

    def _over(self, request: int, task: asyncio.Task[None]) -> None:
        del self._requests[request]
        self._names.pop(request, None)
        self._aborted.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._ended.append(error)  # `step` raises it, which ends the engine
        self._moved.set()

    async def _answer(self, request: int, ids: Sequence[int], params: SamplingParams) -> None:
        try:
            collector = await self._llm.add_request(str(request), tokens_input(list(ids)), params)
            self._names[request] = collector.request_id
            self._ended.append(await collector.get())  # FINAL_ONLY: exactly one output
        except asyncio.CancelledError:
            await self._llm.abort(str(request))

    # --- weights -------------------------------------------------------------------------------

    def pause(self) -> None:
        """Put running requests back into the queue with their tokens and drop all KV. No sampled token is pending."""
        self._call(self._pause())

    async def _pause(self) -> None:
        await asyncio.gather(*self._aborted, return_exceptions=True)
        await self._llm.pause_generation(mode="keep", clear_cache=True)

    def resume(self) -> None:
        self._call(self._llm.resume_generation())

    def install(self, weights_id: WeightsId, update: Update | list[Update]) -> int:
        """Load the version in every worker; a list has one update per worker. Returns the bytes that worker 0 loaded.

        Tokens sampled from now on carry the version's number. Most failures are retried (SiteError). If tensors are
        missing a retry can't help, so RuntimeError ends this process.
        """
        answers: list[int | str] = self._call(self._llm.collective_rpc("take_weights", args=(update,)))
        errors = [answer for answer in answers if isinstance(answer, str)]
        if errors:
            kind = RuntimeError if any(INCOMPLETE in error for error in errors) else SiteError
            raise kind(f"vLLM's workers could not load weights {weights_id}: {errors[0]}")
        self._call(self._llm.update_weight_version(str(weights_id.version)))
        return int(answers[0])

    def close(self) -> None:
        self._call(self._end_all())
        self._llm.shutdown()
        self._call(self._settled())
        self._llm = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_all(self) -> None:
        for request in self._requests:
            self._end(request)
        await asyncio.gather(*self._aborted, return_exceptions=True)

    async def _settled(self) -> None:
        """Wait for vLLM's own tasks, which its shutdown cancels."""
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def _kv_tokens(config: Any) -> int:
    """vLLM's own figure, which also holds for models with mixed attention; else computed from the blocks."""
    return int(getattr(config, "kv_cache_size_tokens", 0) or (config.num_gpu_blocks or 0) * config.block_size)


def engine_args(setup: EngineSetup) -> AsyncEngineArgs:
    wanted = arguments(setup)
    known = {f.name for f in fields(AsyncEngineArgs)}
    for name in wanted.keys() - known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "see vLLM's engine arguments"
        raise UserError(f"engine.options.{name}: vLLM has no such engine argument", hint)
    try:
        return AsyncEngineArgs(**wanted)
    except (TypeError, ValueError) as error:
        raise UserError(f"engine.options: vLLM rejects them: {error}", "correct engine.options") from None


def sampling(
    max_tokens: int,
    temperature: float,
    end_ids: list[int],
    seed: int | None = None,
    kv: dict[str, Any] | None = None,
) -> SamplingParams:
    """`kv`: vLLM's kv_transfer_params."""
    return SamplingParams(
        temperature=temperature,
        max_tokens=max_tokens,
        stop_token_ids=end_ids,
        ignore_eos=True,  # only the ids above end a turn
        logprobs=0,  # of the sampled token only
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        seed=seed,
        extra_args={"kv_transfer_params": kv} if kv else None,
    )
