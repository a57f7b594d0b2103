"""Compares an engine behind its service with its backend used directly, on the same prompts.

Both stay up and take turns, so that noise of the machine affects both equally. The ratio is that of the tokens per
second of a pair; the median of all pairs is reported. The model's end-of-turn ids are removed, so that every answer
has the same length.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart_hpc.backends.registry import declared, find, load
from rollart_hpc.bench.pairs import Pairs, check_model
from rollart_hpc.config.schema import EngineConfig
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.extras import TRAIN, Need, need
from rollart_hpc.rundir import RunDir
from rollart_hpc.types import Frame, WeightsId
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.wakeup import Wakeup

if TYPE_CHECKING:
    from rollart_hpc.engines.contract import EngineSetup

Say = Callable[[str], None]
Prompts = list[list[int]]


@dataclass(frozen=True)
class Settings:
    kind: str = "vllm"
    model: Path | None = None  # None: the tiny one
    batch: int = 16
    prompt_tokens: int = 64
    new_tokens: int = 64
    pairs: int = 5

    def __post_init__(self) -> None:
        for name in ("batch", "prompt_tokens", "new_tokens", "pairs"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: nothing would run", "use at least 1")
        check_model(self.model)


@dataclass
class Result(Pairs):
    settings: Settings

    def as_json(self) -> str:
        s = self.settings
        return self.json(
            bench="engine", engine=s.kind, model=str(s.model or "tiny"), batch=s.batch, prompt_tokens=s.prompt_tokens,
            new_tokens=s.new_tokens,
        )  # fmt: skip

    def as_text(self) -> str:
        return self.table(f"raw {self.settings.kind}")


def bench_engine(settings: Settings, say: Say) -> Result:
    backend = find("engine", settings.kind)
    if not backend.raw:
        able = ", ".join(each.kind for each in declared("engine") if each.raw)
        raise UserError(f"engine {settings.kind} has nothing to compare it with", f"use one of: {able}")
    need(TRAIN, Need(backend.modules, backend.extra, backend.install))
    with tempfile.TemporaryDirectory(prefix="rollart-bench-") as scratch:
        root = Path(scratch)
        model = _endless(settings.model or _tiny(root, settings.kind, say), root / "endless")
        say("  starting both")
        raw, ours = load(backend, backend.raw)(_setup(settings, model, root, "raw")), Ours(settings, model, root)
        try:
            return _compare(settings, raw, ours, _vocabulary(model), say)
        finally:
            ours.close()
            raw.close()


def _compare(settings: Settings, raw: Any, ours: Ours, vocabulary: int, say: Say) -> Result:
    result, rng = Result(settings), random.Random(0)
    num_tokens = settings.batch * settings.new_tokens

    def rate(side: Any) -> float:
        prompts = [[rng.randrange(vocabulary) for _ in range(settings.prompt_tokens)] for _ in range(settings.batch)]
        return num_tokens / float(side.seconds(prompts, settings.new_tokens))

    for side in (raw, ours):  # warm up: the set-up at the first request does not count
        rate(side)
    for number in range(settings.pairs):
        first, second = (raw, ours) if number % 2 else (ours, raw)
        rates = {id(side): rate(side) for side in (first, second)}
        result.ours.append(rates[id(ours)])
        result.raw.append(rates[id(raw)])
        say(f"  pair {number + 1}: ours {result.ours[-1]:.0f} tokens/s, raw {result.raw[-1]:.0f} tokens/s")
    return result


class Ours:
    """An engine with the model's own weights, and its service."""

    def __init__(self, settings: Settings, model: Path, root: Path) -> None:
        from rollart_hpc.engines.directory import named_tensors
        from rollart_hpc.engines.kinds import make_engine

        self._engine = make_engine(_setup(settings, model, root, "ours"))
        self._root = root
        self._engine.suspend()
        self._engine.install(named_tensors(model), WeightsId(1, 0))
        self._engine.resume()

    def seconds(self, prompts: Prompts, num_new_tokens: int) -> float:
        from rollart_hpc.engines.install import Preparer
        from rollart_hpc.engines.service import Service
        from rollart_hpc.observe.trace import Tracer
        from rollart_hpc.weights.store import NodeStore

        link, wakeup = Loop(prompts, num_new_tokens), Wakeup()
        preparer = Preparer(NodeStore(self._root / "store", "bench"), 60.0, self._engine.device, wakeup.set)
        service = Service(self._engine, link, preparer, wakeup, Tracer(None, "bench"))  # type: ignore[arg-type]
        start_s = time.monotonic()
        service.run()
        seconds = time.monotonic() - start_s
        link.close()
        wakeup.close()
        self._engine.forget([str(number) for number in range(len(prompts))])
        return seconds

    def close(self) -> None:
        self._engine.close()


class Loop:
    """The controller's side of a link, in this thread. Sends all turns at once, and Stop after the last answer."""

    clock_offset_s = 0.0

    def rest(self) -> None: ...

    def turn(self) -> None: ...

    def count_work(self, total: Callable[[], int]) -> None: ...

    def __init__(self, prompts: Prompts, num_new_tokens: int) -> None:
        self._readable = Wakeup()
        self._num_left = len(prompts)
        self._incoming: list[tuple[ms.Message, list[Frame]]] = [
            (ms.Generate(number, str(number), 0, 0, True, num_new_tokens, 1.0, 0), [array("i", ids).tobytes()])
            for number, ids in enumerate(prompts)
        ]

    def recv(self, timeout_s: float) -> tuple[ms.Message, list[Frame]] | None:
        return self._incoming.pop() if self._incoming else None

    def fileno(self) -> int:
        return self._readable.fd

    def send(self, message: ms.Message, *frames: Frame) -> None:
        if not isinstance(message, ms.Generated):
            raise SiteError(f"the engine answered {type(message).__name__}", "report this as a bug of the benchmark")
        self._num_left -= 1
        if not self._num_left:
            self._incoming.append((ms.Stop("done"), []))

    def close(self) -> None:
        self._readable.close()


# --- both sides --------------------------------------------------------------------------------


def _config(settings: Settings) -> EngineConfig:
    budget = settings.batch * settings.prompt_tokens
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    return EngineConfig(
        kind=settings.kind, max_running=settings.batch, kv_slots=2 * settings.batch, max_prefill_tokens=budget,
        threads=threads,
    )  # fmt: skip


def _setup(settings: Settings, model: Path, root: Path, side: str) -> EngineSetup:
    from rollart_hpc.engines.contract import EngineSetup

    max_len = settings.prompt_tokens + settings.new_tokens + 1
    return EngineSetup(model, _config(settings), max_len, root / f"cache-{side}", root / "store", seed=1)


# --- the model ---------------------------------------------------------------------------------


def _tiny(root: Path, kind: str, say: Say) -> Path:
    """Made by a run of 0 steps."""
    say("  making the tiny model")
    command = [sys.executable, "-m", "rollart_hpc.cli", "run", "quickstart", "--quiet", "--run-dir", str(root / "run")]
    command += ["steps=0", "validation.plays=0", f"engine.kind={kind}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SiteError(f"could not make the tiny model: {done.stderr.strip()[-2000:]}", "name a model with --model")
    return RunDir(root / "run").model


def _endless(model: Path, target: Path) -> Path:
    """The same model without end-of-turn ids."""
    target.mkdir()
    for path in model.iterdir():
        if path.name not in ("config.json", "generation_config.json", "tokenizer_config.json"):
            (target / path.name).symlink_to(path.resolve())
    content = json.loads((model / "config.json").read_text())
    content["eos_token_id"] = None
    (target / "config.json").write_text(json.dumps(content))
    return target


def _vocabulary(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text())["vocab_size"])
