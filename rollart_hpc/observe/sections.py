"""The sections of the report, one function each. Owns their texts and figures; reads no file."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rollart_hpc.observe import lanes
from rollart_hpc.observe.charts import Axis, Series, Stack, bars, columns, line_chart, nothing, number, thin
from rollart_hpc.observe.history import MAX_EVENTS, History
from rollart_hpc.observe.page import card, fold, section, table
from rollart_hpc.observe.paired import paired
from rollart_hpc.observe.status import Cluster, Status
from rollart_hpc.observe.trace_sums import Trace
from rollart_hpc.vocabulary import RunState

MAX_COLUMNS = 100
_POOLS = {"compute": "prefill", "bandwidth": "decode"}  # a pool has the colour of the work it is best at


@dataclass
class Run:
    """Everything a report is made from."""

    path: Path
    status: Status
    history: History
    trace: Trace
    config: str
    cluster: Cluster = Cluster()

    @property
    def steps(self) -> list[dict[str, Any]]:
        return self.history.steps

    @property
    def validations(self) -> list[dict[str, Any]]:
        return self.history.validations

    @property
    def tasks(self) -> dict[str, str]:
        """Task -> colour."""
        names = [*self.status.tasks]
        names += [v["task"] for v in self.validations if "task" in v]
        names += [task for step in self.steps for task in step.get("reward", {})]
        return {name: f"c{i % 6 + 1}" for i, name in enumerate(dict.fromkeys(names))}


def header(run: Run, name: str) -> str:
    status = run.status
    is_bad = status.state.can_resume or status.state is RunState.UNKNOWN
    kind = "good" if status.state is RunState.FINISHED else "bad" if is_bad else "busy"
    attempts = f", attempt {status.attempt}" if status.attempt > 1 else ""
    mode = f"{status.mode} mode, " if status.mode else ""
    reason = f'<p class="reason">{escape(status.reason)}</p>' if status.reason else ""
    return (
        f'<header><h1>{escape(name)}</h1><span class="badge {kind}">{escape(status.state)}</span></header>{reason}'
        f'<p class="sub">{escape(mode)}{duration(status.time_s)}{attempts} · {escape(str(run.path))}</p>'
    )


def cards(run: Run) -> str:
    status, cards = run.status, []
    cards.append(card("Steps", f"{status.step} / {status.steps}", f"policy version {status.policy_version}"))
    for name, task in status.tasks.items():
        first, last = score(task.score_first), score(task.score_last)
        note = f"{number(task.trajectories)} trajectories" + (", quarantined" if task.quarantined else "")
        cards.append(card(name, first if first == last else f"{first} → {last}", f"validation success, {note}"))
    tokens, seconds = run.history.tokens, run.history.seconds
    rate = tokens / seconds if seconds else status.tokens_per_s
    cards.append(
        card("Generated", f"{number(rate)} tok/s", f"{number(tokens)} tokens in {run.history.num_steps} steps")
    )
    cards.append(card("Max staleness", str(status.staleness.max_trained), f"bound {status.staleness.bound}"))
    cards.append(card("Trainer waits", f"{status.wait.get_batch_share:.0%}", "of its time, for batches"))
    weights = status.weights
    moved = (
        f"of {duration(weights.total_s)}, {number(weights.transfers)} installs, {weights.transport or 'no transport'}"
    )
    cards.append(card("Blocked by installs", duration(weights.exposed_s), moved))
    return f'<div class="cards">{"".join(cards)}</div>'


def scores(run: Run) -> str:
    series = [
        Series(task, colour, [(v["version"], v["success"]) for v in run.validations if _has(v, task, "success")])
        for task, colour in run.tasks.items()
    ]
    plays = max((v.get("plays", 0) for v in run.validations), default=0)
    marks = _marks(run)
    chart = line_chart(series, x_title="policy version", y_limits=(0.0, 1.0), marks=marks)
    sub = f"success in validation on held-out seeds, {plays} plays each"
    sub += "; red: a worker was lost, or the run was restored" if marks else ""
    return section("Score per task", sub, chart + _changes(run))


def _changes(run: Run) -> str:
    """Change of the reward from the first to the last validation, paired by seed."""
    rows = []
    for task in run.tasks:
        own = [v for v in run.validations if v.get("task") == task]
        change = paired(own[0], own[-1]) if len(own) > 1 else None
        if change is not None and change.plays > 1:
            gap = f"{change.difference:+.3f} ± {change.standard_error:.3f}"
            rows.append([task, str(change.plays), f"{change.before:.3f}", f"{change.after:.3f}", gap])
    heads = ["task", "common seeds", "first reward", "last reward", "paired difference ± standard error"]
    return table(heads, rows) if rows else ""


def _has(line: dict[str, Any], task: str, key: str) -> bool:
    return line.get("task") == task and line.get(key) is not None and "version" in line


def rewards(run: Run) -> str:
    series = [
        Series(
            task,
            colour,
            [(s["version"], s["reward"][task]) for s in run.steps if s.get("reward", {}).get(task) is not None],
            True,
        )
        for task, colour in run.tasks.items()
    ]
    chart = line_chart(series, x_title="policy version", marks=_marks(run))
    return section("Training reward per task", "mean over the trajectories of a step", chart)


def _marks(run: Run) -> list[tuple[float, str]]:
    """Lost workers and restores, at the version that the run had at the time."""
    times = [step.get("time_s", 0.0) for step in run.steps]
    marks = []
    for event in run.history.losses:
        if times and event.get("time_s", 0.0) <= times[-1]:
            index = bisect_left(times, event.get("time_s", 0.0))
            marks.append((float(run.steps[index]["version"]), f"{event.get('name')} lost: {event.get('detail')}"))
    for before, after in zip(run.steps, run.steps[1:], strict=False):
        if after.get("attempt") != before.get("attempt"):
            marks.append((float(after["version"]), f"restored, attempt {after.get('attempt')}"))
    return marks


def trainer_time(run: Run) -> str:
    steps = [s for s in run.steps if s.get("train_s") is not None]
    size = -(-len(steps) // MAX_COLUMNS) or 1
    stacks = []
    for i in range(0, len(steps), size):
        chunk = steps[i : i + size]
        wait_s, train_s = _mean(chunk, "wait_s"), _mean(chunk, "train_s")
        other_s = max(0.0, _mean(chunk, "step_s") - wait_s - train_s)
        parts = [("train", train_s, "train"), ("wait for batch", wait_s, "wait"), ("other", other_s, "other")]
        stacks.append(Stack(str(chunk[0].get("version", i)), parts))
    sub = "seconds per step; other: validation, checkpoints, publishing weights" + _speed(steps)
    return section("Where the trainer's time went", sub, columns(stacks, x_title="policy version", unit=" s"))


def _speed(steps: list[dict[str, Any]]) -> str:
    """Medians of what `trainers.speed` measured, if anything."""
    shown = (
        ("tokens_per_s_rank", "{:.0f} tokens/s per rank"),
        ("mfu", "MFU {:.1%}"),
        ("memory_peak_gb", "peak {:.1f} GB"),
    )
    parts = []
    for name, text in shown:
        values = sorted(metrics[name] for step in steps if name in (metrics := step.get("metrics") or {}))
        if values:
            parts.append(text.format(values[len(values) // 2]))
    return f"; median: {', '.join(parts)}" if parts else ""


def _mean(steps: list[dict[str, Any]], key: str) -> float:
    return sum(float(s.get(key) or 0.0) for s in steps) / len(steps)


def process_time(run: Run) -> str:
    return section(
        "What each process did",
        "share of the time between its first and last span",
        lanes.shares(run.trace),
    )


def timeline(run: Run) -> str:
    close = lanes.close_up(run.trace)
    close = f"<h3>The last steps, span by span</h3><div class='scroll'>{close}</div>" if close else ""
    sub = "one lane per process, on the controller's clock; thin lines: ends of steps; open trace.json in Perfetto"
    if run.trace.num_processes > len(run.trace.lanes) > 0:
        sub += f"; {len(run.trace.lanes)} of {run.trace.num_processes} processes are shown"
    return section("Timeline", sub, f"<div class='scroll'>{lanes.overview(run.trace)}</div>{close}")


def staleness(run: Run) -> str:
    staleness = run.status.staleness
    counts = {int(age): count for age, count in staleness.histogram.items()}
    ages = range(max([*counts, staleness.bound, 0]) + 1)
    stacks = [
        Stack(str(age), [("trajectories", counts.get(age, 0), "c1" if age <= staleness.bound else "weights")])
        for age in ages
    ]
    sub = f"versions between a trajectory's first token and the step that trained on it; bound {staleness.bound}"
    chart = columns(stacks, x_title="versions behind") if counts else nothing("nothing was trained")
    return section("Staleness of trained trajectories", sub, chart)


def pools(run: Run) -> str:
    pools = list(dict.fromkeys(pool for task in run.status.tasks.values() for pool in task.pool_share))
    colours = {pool: _POOLS.get(pool, f"c{i % 4 + 2}") for i, pool in enumerate(pools)}
    stacks = [
        Stack(
            name, [(pool, task.pool_share.get(pool, 0.0), colours[pool]) for pool in pools], _largest(task.pool_share)
        )
        for name, task in run.status.tasks.items()
    ]
    tokens = [
        Stack(name, [("prefill", task.prefill_tokens, "prefill"), ("decode", task.decode_tokens, "decode")])
        for name, task in run.status.tasks.items()
    ]
    sub = f"share of each task's requests by pool; {run.status.fallbacks} fallbacks"
    chart = bars(stacks, share=True) + "<h3>Tokens per task</h3>" + bars(tokens, share=True)
    sub += "".join(f"; {pool} = partition {name}" for pool, name in run.cluster.partitions.items())
    peaks = dict(sorted(run.history.kv_peaks.items()))
    sub += "".join(f"; {pool}: up to {share:.0%} of its KV in use" for pool, share in peaks.items())
    for name, hours in run.cluster.gpu_hours.items():
        sub += f"; GPU-hours on {name}: {hours.given:.2f}, {hours.idle:.2f} of them idle"
    return section("Share of each pool per task", sub, chart)


def affinities(run: Run) -> str:
    """Why tasks with `affinity: auto` had their pools."""
    found = {name: task.affinity for name, task in run.status.tasks.items() if task.affinity is not None}
    if not found:
        return ""
    names = list(dict.fromkeys(pool for own in found.values() for pool in own.turn_s))
    rows = [
        [name, own.choice if own.is_measured else "not yet", f"{own.prompt_tokens:.0f}", f"{own.prefill_tokens:.0f}",
         f"{own.reuse:.0%}", f"{own.decode_tokens:.1f}",
         *(f"{1000 * own.turn_s[pool]:.3g}" if pool in own.turn_s else "" for pool in names)]
        for name, own in found.items()
    ]  # fmt: skip
    heads = ["task", "choice", "prompt tokens", "prefilled", "prefix reuse", "answer tokens"]
    sub = "tasks with affinity: auto; means per turn at the end; the map with the least work of the busiest engine wins"
    return section("Chosen pools", sub, table([*heads, *(f"ms in {pool}" for pool in names)], rows))


def _largest(shares: dict[str, float]) -> str:
    return f"{max(shares.values(), default=0.0):.1%}"


def drops(run: Run) -> str:
    dropped = sorted(run.status.dropped.items(), key=lambda item: -item[1])
    stacks = [Stack(reason, [("trajectories", count, "c2")], number(count)) for reason, count in dropped]
    chart = bars(stacks) if stacks else nothing("nothing was dropped")
    return section("Dropped, by reason", "trajectories that were started but not trained on", chart)


def workers(run: Run) -> str:
    rows = [[role, str(w.joined), str(w.lost), str(w.left), str(w.alive)] for role, w in run.status.workers.items()]
    refused = ", ".join(f"{count} {what}" for what, count in run.status.refused.items() if count)
    content = table(["role", "joined", "lost", "left", "alive at the end"], rows) if rows else nothing()
    return section("Workers", f"refused to join: {refused or 'none'}", content)


def beginning(run: Run) -> str:
    """The time until the first step, by phase."""
    phases = run.history.phases
    starts = [0.0, *(phase.end_s for phase in phases)]
    stacks = [
        Stack(phase.name, [(phase.name, phase.end_s - start_s, "wait")], f"at {duration(phase.end_s)}")
        for phase, start_s in zip(phases, starts, strict=False)
    ]
    chart = bars(stacks) if stacks else nothing("no phase was completed")
    return section("From the controller's start to the first step", "seconds per phase", chart)


def figures(run: Run) -> str:
    """One small chart per metric that the trainer reported."""
    names = list(dict.fromkeys(key for step in run.steps for key in step.get("metrics", {})))
    if not names:
        return ""
    sparks = "".join(_spark(run, name) for name in names[:24])
    return section("Training metrics", "as reported by the trainer, per step", f'<div class="sparks">{sparks}</div>')


def _spark(run: Run, name: str) -> str:
    values = [s["metrics"][name] for s in run.steps if isinstance(s.get("metrics", {}).get(name), int | float)]
    if not values:
        return ""
    points = thin(list(enumerate(values)), 120)
    low, high = min(y for _, y in points), max(y for _, y in points)
    y_axis, x_axis = Axis(low, high, 38, 6), Axis(0, points[-1][0], 0, 190)
    path = "M" + "L".join(f"{x_axis(x):g},{y_axis(y):g}" for x, y in points)
    hover = escape(
        f"{name}: first {values[0]:.4g}, last {values[-1]:.4g}, min {min(values):.4g}, max {max(values):.4g}"
    )
    return (
        f'<div data-t="{hover}"><span>{escape(name)}</span> <b>{values[-1]:.4g}</b>'
        f'<svg class="spark" viewBox="0 0 190 44" preserveAspectRatio="none">'
        f'<path class="line faint c1" d="{path}"/></svg></div>'
    )


def events(run: Run) -> str:
    shown = run.history.events
    rows = [
        [
            f"{e.get('time_s', 0.0):.1f} s",
            str(e.get("what", "")).replace("_", " "),
            str(e.get("name", "")),
            str(e.get("detail", "")),
        ]
        for e in shown
    ]
    left_out = run.history.num_events - len(shown)
    title = f"Events ({run.history.num_events}" + (f", the last {MAX_EVENTS} shown)" if left_out else ")")
    return fold(title, table(["at", "what", "who", "detail"], rows, numbers=False)) if rows else ""


def score(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def duration(seconds: float) -> str:
    """0.52 s, 47 s, 7 min 32 s, 3 h 5 min"""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
