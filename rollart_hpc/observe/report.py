"""report.html: what a run did and how it ended, in one file that opens offline. Owns which sections are shown.

Made from the files of the run (status, metrics, traces, config). Any of them may be missing: a run that died at its
first step has a report too. Writes only the report.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import msgspec

from rollart_hpc.errors import SiteError
from rollart_hpc.files import write_atomic
from rollart_hpc.observe import sections
from rollart_hpc.observe.examples import examples, shown
from rollart_hpc.observe.history import read_history
from rollart_hpc.observe.page import fold, page, pair
from rollart_hpc.observe.plays import Play
from rollart_hpc.observe.sections import Run
from rollart_hpc.observe.status import Cluster, Status, read_status
from rollart_hpc.observe.trace_sums import read_trace
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState


def write_report(run_dir: Path, state: RunState | None = None) -> Path:
    """`state`: how the run ended, if the caller knows better than status.json (a killed run can't record its end)."""
    run = load_run(run_dir)
    if state is not None:
        run.status.state = state
    target = RunDir(run_dir).report
    write_atomic(target, render(run, examples(RunDir(run_dir))))
    return target


def load_run(run_dir: Path) -> Run:
    """What the files of the run say now."""
    paths = RunDir(run_dir)
    try:
        status = read_status(paths.status) or Status()
    except SiteError as error:
        status = Status(reason=error.what)
    return Run(
        path=run_dir,
        status=status,
        history=read_history(paths.metrics),
        trace=read_trace(paths.traces(attempt) for attempt in paths.attempt_numbers()),
        cluster=_cluster(paths.cluster),
        config=paths.config.read_text(errors="replace") if paths.config.exists() else "",
    )


def _cluster(path: Path) -> Cluster:
    """Empty for a run on one machine."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Cluster)
    except (OSError, msgspec.DecodeError):
        return Cluster()


def render(run: Run, plays: list[Play] | None = None) -> str:
    """`plays`: examples of trajectories."""
    name = run.status.name or run.path.name
    head = [sections.header(run, name), sections.cards(run)]
    return page(f"{name} · rollart-hpc", [*head, *details(run), shown(plays or [])])


def details(run: Run) -> list[str]:
    """The sections below the summary."""
    return [
        pair(sections.scores(run), sections.rewards(run)),
        pair(sections.trainer_time(run), sections.process_time(run)),
        sections.timeline(run),
        pair(sections.staleness(run), sections.pools(run)),
        sections.affinities(run),
        pair(sections.drops(run), sections.workers(run)),
        sections.beginning(run),
        sections.figures(run),
        sections.events(run),
        fold("Resolved configuration", f"<pre>{escape(run.config) or 'none'}</pre>"),
    ]
