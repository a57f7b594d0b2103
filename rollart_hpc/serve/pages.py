"""The pages about runs: all runs, one run, its logs, several compared. Owns their content; reads through shelves."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from html import escape
from itertools import combinations
from pathlib import Path

from rollart_hpc.launch.status import RunStatus
from rollart_hpc.observe import sections
from rollart_hpc.observe.charts import Series, line_chart
from rollart_hpc.observe.history import History
from rollart_hpc.observe.page import card, fold, section
from rollart_hpc.observe.paired import paired
from rollart_hpc.observe.report import details
from rollart_hpc.observe.sections import duration
from rollart_hpc.serve.index import lengths
from rollart_hpc.serve.library import Library, Shelf
from rollart_hpc.serve.shell import link, part, rows, shell, text, to
from rollart_hpc.vocabulary import RunState

RECENT_STEPS = 20
LOG_BYTES = 64 << 10  # of the end of a log
COMPARED = 6


# --- all runs ------------------------------------------------------------------------------------


def all_runs(library: Library) -> str:
    shelves = library.shelves()
    lines = [_run_row(shelf, shelf.status()) for shelf in shelves]
    heads = ["", "run", "state", "step", "success in validation", "to go", "age"]
    table = rows(heads, lines, numbers=(3,)) if lines else '<p class="nothing">there are no runs here yet</p>'
    form = f'<form action="compare">{table}<button>Compare the chosen runs</button></form>' if lines else table
    return shell("Runs", "./", "*", [], f"<header><h1>Runs</h1></header><section>{form}</section>")


def _run_row(shelf: Shelf, status: RunStatus) -> list[str]:
    scores = [f"{escape(n)} {t.score_last:.2f}" for n, t in status.tasks.items() if t.score_last is not None]
    box = f'<input type="checkbox" name="run" value="{escape(shelf.name)}" aria-label="compare {escape(shelf.name)}">'
    state = f'<span class="badge {kind_of(status.state)}">{escape(status.state)}</span>'
    left_s = time_to_go(status, shelf.history())
    return [
        box,
        link(f"run/{part(shelf.name)}/", shelf.name),
        state,
        f"{status.step} / {status.steps}",
        ", ".join(scores) or "none",
        duration(left_s) if left_s else "",
        duration(max(0.0, time.time() - shelf.run.created_s)),
    ]


def kind_of(state: RunState) -> str:
    if state is RunState.FINISHED:
        return "good"
    return "bad" if state.can_resume or state is RunState.UNKNOWN else "busy"


def time_to_go(status: RunStatus, history: History) -> float:
    """From the newest steps; 0 if unknown, or if the run is over."""
    recent = [float(step["step_s"]) for step in history.steps[-RECENT_STEPS:] if "step_s" in step]
    if status.state.is_over or not recent:
        return 0.0
    return sum(recent) / len(recent) * max(0, status.steps - status.step)


# --- one run -------------------------------------------------------------------------------------


def one_run(shelf: Shelf) -> str:
    status, run = shelf.status(), shelf.page()
    run = replace(run, status=status)
    shelf.index.refresh()
    name = status.name or shelf.name
    content = [
        sections.header(run, name),
        _progress(status, run.history),
        sections.cards(run),
        _warnings(shelf, status),
        _jobs(status),
        _lengths(shelf),
        *details(run),
    ]
    return shell(shelf.name, "../../", shelf.name, trail(shelf), "\n".join(filter(None, content)))


def trail(shelf: Shelf, up: str = "") -> list[tuple[str, str]]:
    """`up`: the way from the page to that of the run."""
    return [(shelf.name, up or "./"), ("Trajectories", f"{up}plays"), ("Logs", f"{up}logs")]


def _progress(status: RunStatus, history: History) -> str:
    left_s = time_to_go(status, history)
    left = f", about {duration(left_s)} to go" if left_s else ""
    done = f"{status.step} of {status.steps} steps{left}"
    if status.validating is not None:
        done += f", validating version {status.validating}"
    return f'<p class="progress"><progress max="{max(1, status.steps)}" value="{status.step}"></progress> {done}</p>'


def _warnings(shelf: Shelf, status: RunStatus) -> str:
    found = [f"task {name} is quarantined: {task.quarantine_reason}" for name, task in status.tasks.items()
             if task.quarantined]  # fmt: skip
    found += [f"last failure of {name}: {t.last_error}" for name, t in status.tasks.items() if t.last_error]
    found += [f"{name} is set aside: {reason}" for name, reason in status.aside.items()]
    if status.updates_skipped:
        found.append(f"{status.updates_skipped} updates were skipped because their gradients were not finite")
    found += [f"lost: {workers.lost} {role}" for role, workers in status.workers.items() if workers.lost]
    found += shelf.index.notes
    return (
        section("Warnings", "", "<ul>" + "".join(f"<li>{text(each)}</li>" for each in found) + "</ul>") if found else ""
    )


def _jobs(status: RunStatus) -> str:
    """On a cluster: the jobs as Slurm sees them, and what they cost."""
    lines = [
        [
            escape(each)
            for each in (row.job, row.unit, row.partition, row.state.lower(), row.nodes, row.left, row.reason)
        ]
        for row in status.jobs
    ]
    heads = ["job", "part", "partition", "state", "nodes", "left", "reason"]
    hours = "".join(
        card(f"GPU-hours on {name}", f"{each.given:.2f}", f"{each.idle:.2f} of them idle")
        for name, each in status.gpu_hours.items()
    )
    if status.cost:
        hours += card("Cost", f"{status.cost:.4g}", "in the unit of the site file")
    content = (rows(heads, lines) if lines else "") + (f'<div class="cards">{hours}</div>' if hours else "")
    return section("Jobs", "as the cluster sees them", content) if content else ""


def _lengths(shelf: Shelf) -> str:
    plays = [play for play in shelf.index.find_recent(2000) if play.purpose == "train"]
    lines = [[escape(task), str(count), f"{tokens:.0f}", f"{cut:.0%}"] for task, count, tokens, cut in lengths(plays)]
    if not lines:
        return ""
    sub = f"the newest {len(plays)} recorded trajectories in training"
    heads = ["task", "trajectories", "mean tokens", "ended by a limit"]
    return section("Lengths", sub, rows(heads, lines, numbers=(1, 2, 3)))


# --- logs ----------------------------------------------------------------------------------------


def logs(shelf: Shelf, process: str) -> str:
    """`process` is looked up among the logs of the newest attempt."""
    run = shelf.run
    found = {path.stem: path for path in sorted(run.logs(run.last_attempt()).glob("*.log"))}
    chosen = process if process in found else next(iter(found), "")
    links = " ".join(
        f"<b>{escape(name)}</b>" if name == chosen else link(to("logs", process=name), name) for name in found
    )
    content = f"<pre>{text(tail(found[chosen]))}</pre>" if chosen else '<p class="nothing">there are no logs yet</p>'
    head = f"<header><h1>Logs</h1></header><p class='sub'>attempt {run.last_attempt()}, the end of the log</p>"
    body = f"{head}<section><p class='chips'>{links}</p>{content}</section>"
    return shell(f"{shelf.name}: logs", "../../", shelf.name, trail(shelf), body)


def tail(path: Path) -> str:
    """The last lines of a file of any size."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_BYTES))
            data = file.read(LOG_BYTES)
    except OSError as error:
        return f"can't be read: {error}"
    return (data.partition(b"\n")[2] if size > LOG_BYTES else data).decode(errors="replace")


# --- comparison ----------------------------------------------------------------------------------


def compare(library: Library, names: list[str]) -> str:
    chosen = [shelf for name in dict.fromkeys(names) if (shelf := library.find(name))][:COMPARED]
    head = "<header><h1>Comparison</h1></header>"
    if not chosen:
        content = f'{head}<p class="nothing">choose runs on the page of all runs</p>'
        return shell("Comparison", "./", "", [], content)
    histories = {shelf.name: shelf.history() for shelf in chosen}
    tasks = list(dict.fromkeys(v["task"] for each in histories.values() for v in each.validations if "task" in v))
    parts = [_compared(task, histories) for task in tasks]
    parts.append(_rewards(histories))
    content = head + f'<div class="grid2">{"".join(parts)}</div>' + _paired(histories, tasks)
    return shell("Comparison", "./", "*", [], content)


def _compared(task: str, histories: dict[str, History]) -> str:
    series = [
        Series(name, f"c{i + 1}", [(v["version"], v["success"]) for v in history.validations
                                   if v.get("task") == task and v.get("success") is not None])
        for i, (name, history) in enumerate(histories.items())
    ]  # fmt: skip
    chart = line_chart(series, x_title="policy version", y_limits=(0.0, 1.0))
    return section(task, "success in validation on held-out seeds", chart)


def _rewards(histories: dict[str, History]) -> str:
    series = []
    for i, (name, history) in enumerate(histories.items()):
        points = [
            (s["version"], sum(s["reward"].values()) / len(s["reward"])) for s in history.steps if s.get("reward")
        ]
        series.append(Series(name, f"c{i + 1}", points, True))
    return section("Training reward", "mean over tasks", line_chart(series, x_title="policy version"))


def _paired(histories: dict[str, History], tasks: list[str]) -> str:
    """The last validations of each two runs, seed by seed."""
    lines = []
    for task in tasks:
        last = {n: v for n, h in histories.items() for v in h.validations if v.get("task") == task and v.get("each")}
        for one, other in combinations(last, 2):
            found = paired(last[one], last[other])
            if found is not None and found.plays > 1:
                gap = f"{found.difference:+.3f} ± {found.standard_error:.3f}"
                verdict = "yes" if found.is_significant else "no"
                cells = [task, one, other, str(found.plays), f"{found.before:.3f}", f"{found.after:.3f}", gap, verdict]
                lines.append(list(map(escape, cells)))
    if not lines:
        return fold("Paired validations", "<p>the runs have no common seeds, or have not validated yet</p>")
    heads = ["task", "run", "other run", "common seeds", "reward", "of the other", "difference ± SE", "beyond 2 SE"]
    sub = "the last validation of each, on the seeds that both have played"
    return section("Paired validations", sub, rows(heads, lines, numbers=(3, 4, 5, 6)))
