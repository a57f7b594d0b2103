"""vLLM used directly: AsyncLLM with the same model, requests and log-probs, without our code.

For `bench engine` only, to measure the cost of our contract, service and bookkeeping.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from rollart_hpc.engines.contract import EngineSetup
from rollart_hpc.engines.vllm.settings import arguments, set_environment

_OURS = ("worker_extension_cls", "weight_transfer_config")


class RawVllm:
    def __init__(self, setup: EngineSetup) -> None:
        set_environment(setup)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        values: dict[str, Any] = {k: v for k, v in arguments(setup).items() if k not in _OURS}
        self._loop = asyncio.new_event_loop()
        args = AsyncEngineArgs(**values, disable_log_stats=True)
        self._llm: Any = self._loop.run_until_complete(_started(AsyncLLM, args))

    def seconds(self, prompts: Sequence[Sequence[int]], num_new_tokens: int) -> float:
        """Seconds to answer all prompts at once."""
        start_s = time.monotonic()
        self._loop.run_until_complete(self._answer_all(prompts, num_new_tokens))
        return time.monotonic() - start_s

    async def _answer_all(self, prompts: Sequence[Sequence[int]], num_new_tokens: int) -> None:
        await asyncio.gather(*(self._answer(number, ids, num_new_tokens) for number, ids in enumerate(prompts)))

    async def _answer(self, number: int, ids: Sequence[int], num_new_tokens: int) -> None:
        from vllm.inputs import TokensPrompt

        from rollart_hpc.engines.vllm.core import sampling

        params = sampling(num_new_tokens, 1.0, [])
        async for output in self._llm.generate(TokensPrompt(prompt_token_ids=list(ids)), params, str(number)):
            if output.finished:
                assert len(output.outputs[0].token_ids) == num_new_tokens

    def close(self) -> None:
        self._llm.shutdown()
        self._llm = None
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())


async def _started(kind: Any, args: Any) -> Any:
    """Must run inside the event loop, where AsyncLLM starts its output task."""
    return kind.from_engine_args(args)
