"""vLLM itself, as far as we use it: start, requests, steps, weights, end. Owns vLLM's LLMEngine and its quirks.

LLMEngine is vLLM's synchronous front: `step` returns what the next scheduler step brought, whether the engine core runs
in this process or in its own, which is what our contract asks for. (AsyncLLM is the same front under asyncio: it can't
run the core in this process, and a loop of its own would only hand every output to ours.)
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from vllm import SamplingParams
from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor

from rollart_hpc.engines.contract import Counters
from rollart_hpc.engines.vllm.settings import Setup, arguments
from rollart_hpc.engines.vllm.updates import INCOMPLETE, Update
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.types import WeightsId


class StepCounter:
    """Stands in for vLLM's loggers: what each step ran, for our counters."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def record(self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None) -> None:
        self._counters.num_forwards += 1
        if iteration_stats is not None:
            self._counters.num_decode_tokens += iteration_stats.num_generation_tokens
            self._counters.num_prefill_tokens += iteration_stats.prompt_token_stats.computed

    def log(self) -> None:
        pass


class VllmCore:
    def __init__(self, setup: Setup, counters: Counters) -> None:
        logging.getLogger("vllm").setLevel(logging.WARNING)
        threads = torch.get_num_threads()
        self._owns_group = setup.in_process and not torch.distributed.is_initialized()
        config = engine_args(setup).create_engine_config(UsageContext.ENGINE_CONTEXT)
        self._llm: Any = LLMEngine(
            config, Executor.get_class(config), log_stats=True, multiprocess_mode=not setup.in_process
        )
        if setup.in_process:
            torch.set_num_threads(threads)
        self._llm.logger_manager = StepCounter(counters)
        self.vocabulary = int(config.model_config.get_vocab_size())
        self._core = self._llm.engine_core
        self._in_process = setup.in_process
        self._names: dict[int, str] = {}
        self.pause()  # until the first install

    # --- requests ------------------------------------------------------------------------------

    def add(self, request: int, ids: Sequence[int], params: SamplingParams) -> None:
        name = str(request)
        self._names[request] = self._llm.add_request(name, TokensPrompt(prompt_token_ids=list(ids)), params)

    def abort(self, request: int) -> None:
        name = self._names.pop(request, None)
        if name is not None:
            self._llm.abort_request([name], internal=True)

    def num_done(self, request: int) -> int:
        """Tokens of a request whose KV is lost in an install; 0 while nothing was sampled."""
        state = self._llm.output_processor.request_states.get(self._names.get(request))
        num_sampled = state.detokenizer.num_output_tokens() if state is not None else 0
        return state.prompt_len + num_sampled if num_sampled else 0

    def step(self) -> list[RequestOutput]:
        outputs = [output for output in self._llm.step() if output.finished]
        for output in outputs:
            self._names.pop(int(output.request_id), None)
        return outputs

    # --- weights -------------------------------------------------------------------------------

    def pause(self) -> None:
        """Running requests go back to the queue with their tokens; all KV is dropped."""
        self._utility("pause_scheduler", "keep", True)

    def resume(self) -> None:
        self._utility("resume_scheduler")

    def install(self, weights_id: WeightsId, update: Update | list[Update]) -> int:
        """Every worker takes the version, by its own update if there is one for each; returns the bytes it took.

        Tokens sampled from now on carry the version's number. What failed may work next time, but a version that lacks
        something will lack it again: this process ends by it.
        """
        answers: list[int | str] = self._llm.collective_rpc("take_weights", args=(update,))
        errors = [answer for answer in answers if isinstance(answer, str)]
        if errors:
            kind = RuntimeError if any(INCOMPLETE in error for error in errors) else SiteError
            raise kind(f"vLLM's workers did not take weights {weights_id}: {errors[0]}")
        self._llm.set_weight_version(str(weights_id.version))
        return int(answers[0])

    def close(self) -> None:
        self._core.shutdown()
        if self._in_process:
            destroy_model_parallel()
        if self._owns_group:
            destroy_distributed_environment()

    def _utility(self, method: str, *args: Any) -> None:
        if self._in_process:
            getattr(self._core.engine_core, method)(*args)
        else:
            self._core.call_utility(method, *args)


def engine_args(setup: Setup) -> EngineArgs:
    wanted = arguments(setup)
    known = {f.name for f in fields(EngineArgs)}
    for name in wanted.keys() - known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "see vLLM's engine arguments"
        raise UserError(f"engine.vllm.{name}: vLLM has no such engine argument", hint)
    try:
        return EngineArgs(**wanted)
    except (TypeError, ValueError) as error:
        raise UserError(f"engine.vllm: vLLM refuses its arguments: {error}", "correct the run file") from None


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
        ignore_eos=True,  # the ids above say what ends a turn
        logprobs=0,  # of the sampled token only
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        seed=seed,
        extra_args={"kv_transfer_params": kv} if kv else None,
    )
