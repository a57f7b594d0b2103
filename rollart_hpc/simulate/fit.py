"""A workload measured from a run: its traces, metrics and status. Owns what is read from where; simulates nothing.

turns, latencies      spans of env and reward workers, by trajectory
tokens                totals of each task in status.json; their spread is assumed
engines               spans of prefill and decode: seconds by iterations and tokens, least squares
trainer, installs     spans of the trainer and of engines
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.config.schema import RunConfig, TaskConfig
from rollart_hpc.errors import UserError
from rollart_hpc.estimate.roofline import Pace
from rollart_hpc.observe import metrics
from rollart_hpc.observe.status import Status, TaskStatus, read_status
from rollart_hpc.observe.timeline import Span, read_file
from rollart_hpc.rundir import RunDir
from rollart_hpc.simulate.laws import Law, measured
from rollart_hpc.simulate.workload import Machines, TaskProfile, Workload

_ANSWER_CV = 0.5  # assumed: traces have sums of tokens only
_PROMPT_SHARE = 0.5  # assumed: of a first prompt, relative to all later observations of one turn


@dataclass
class Seen:
    """What the traces say about a task, by trajectory."""

    resets_s: list[float] = field(default_factory=list)
    steps_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    scores_s: list[float] = field(default_factory=list)


@dataclass
class Worked:
    """What an engine did in one window."""

    name: str
    seconds: float
    steps: float
    tokens: float


def fitted(run: RunDir, config: RunConfig) -> Workload:
    """`config`: the run to be simulated; latency that it injects itself is not taken from the measured run."""
    ran, status = read_resolved(run.config), read_status(run.status)
    paths = [path for attempt in run.attempt_numbers() for path in sorted(run.traces(attempt).glob("*.jsonl"))]
    spans = [span for path in paths for span in read_file(path)]
    if status is None or not spans:
        raise UserError(f"{run.path} has no traces", "use a run that was recorded, with observe.trace_bytes above 0")
    seen = _tasks(spans)
    tasks = {
        name: _profile(name, seen[name], status.tasks[name], ran.tasks[name])
        for name in seen
        if name in status.tasks and name in ran.tasks and status.tasks[name].turns
    }
    if not tasks:
        raise UserError(f"{run.path}: no task of it was played to an end", "use a run that made a step or more")
    notes = (
        f"measured in {run.path.name}: turns, latencies, seconds of engines and trainer, mean tokens",
        f"assumed: answers vary by {_ANSWER_CV:.0%}",
    )
    return Workload(run.path.name, tasks, _machines(run, status, spans), notes)


def _tasks(spans: Iterable[Span]) -> defaultdict[str, Seen]:
    found: defaultdict[str, Seen] = defaultdict(Seen)
    for span in spans:
        task = span.args.get("task")
        if task is None:
            continue
        seconds = span.end_s - span.start_s
        if span.name == "environment.reset":
            found[task].resets_s.append(seconds)
        elif span.name == "environment.turn":
            found[task].steps_s[str(span.args.get("slot"))].append(seconds)
        elif span.name == "reward":
            found[task].scores_s.append(seconds)
    return found


def _profile(name: str, seen: Seen, status: TaskStatus, ran: TaskConfig) -> TaskProfile:
    turns = [float(len(each)) for each in seen.steps_s.values()]
    steps_s = [seconds for each in seen.steps_s.values() for seconds in each]
    injected = ran.trouble.turn_latency.mean_s
    own_s = fmean(steps_s) - injected if steps_s else 0.0
    answer = status.decode_tokens / status.turns
    prompt = status.prefill_tokens / status.turns
    mean_turns = fmean(turns) if turns else 1.0
    return TaskProfile(
        turns=measured(turns) if turns else Law(1),
        prompt=Law(max(1.0, prompt * mean_turns * _PROMPT_SHARE) if mean_turns > 1 else prompt),
        observation=Law(max(1.0, prompt * (1 - _PROMPT_SHARE) * mean_turns / max(1.0, mean_turns - 1))),
        answer=Law(max(1.0, answer), _ANSWER_CV, high=ran.max_response_tokens),
        reset=measured(seen.resets_s) if seen.resets_s else Law(0.0),
        step=Law(max(0.0, own_s), 0.5) if injected or not steps_s else measured(steps_s),
        score=measured(seen.scores_s) if seen.scores_s else Law(0.0),
        success=status.success if status.success is not None else 0.5,
        sources={"turns, latencies, tokens": f"measured in {name}"},
    )


# --- machines ----------------------------------------------------------------------------------


def _machines(run: RunDir, status: Status, spans: list[Span]) -> Machines:
    paces = {}
    for pool in {task_pool for task in status.tasks.values() for task_pool in task.pool_share}:
        worked = _windows(span for span in spans if span.process.startswith(f"engine-{pool}-"))
        if worked:
            paces[pool] = _pace(worked)
    steps = metrics.surviving_steps(metrics.read(run.metrics))
    tokens = sum(task.prefill_tokens + task.decode_tokens for task in status.tasks.values())
    trained_s = _seconds(spans, "trainer-0", "train")
    installs_s = _seconds(spans, "engine-", "weights")
    published_s = _seconds(spans, "trainer-0", "weights")
    received_s = _seconds(spans, "relay-", "weights.receive")
    return Machines(
        train_fixed_s=fmean(published_s) if published_s else 0.0,
        install_s=fmean(installs_s) if installs_s else 1e-3,
        push_s=fmean(received_s) if received_s else 1e-3,
        paces=paces,
        train_token_s=sum(trained_s) / max(1, tokens) if steps else 0.0,
    )


def _seconds(spans: list[Span], process: str, name: str) -> list[float]:
    return [span.end_s - span.start_s for span in spans if span.process.startswith(process) and span.name == name]


def _windows(spans: Iterable[Span]) -> list[Worked]:
    return [
        Worked(span.name, span.end_s - span.start_s, float(span.args["steps"]), float(span.args.get("tokens", 0)))
        for span in spans
        if span.name in ("prefill", "decode") and "steps" in span.args
    ]


def _pace(worked: list[Worked]) -> Pace:
    """Seconds = steps x fixed + tokens x each, apart for prefill and decoding, none below 0."""
    decode_fixed, decode_s = _line([each for each in worked if each.name == "decode"])
    prefill_fixed, prefill_s = _line([each for each in worked if each.name == "prefill"])
    fixed = decode_fixed or prefill_fixed
    return Pace(prefill_s, decode_s, 0.0, 0.0, 0.0, 0.0, fixed)


def _line(worked: list[Worked]) -> tuple[float, float]:
    if not worked:
        return 0.0, 0.0
    inputs = np.array([[each.steps, each.tokens] for each in worked])
    seconds = np.array([each.seconds for each in worked])
    (fixed, each_s), *_ = np.linalg.lstsq(inputs, seconds, rcond=None)
    if each_s < 0:
        return float(seconds.sum() / max(1.0, inputs[:, 0].sum())), 0.0
    if fixed < 0:
        return 0.0, float(seconds.sum() / max(1.0, inputs[:, 1].sum()))
    return float(fixed), float(each_s)
