"""`status`: prints the status of a run, or of all runs, as text or JSON; -f follows one. Changes nothing."""

from __future__ import annotations

import argparse
import os
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from rollart_hpc.cli.following import follow_to_the_end
from rollart_hpc.cli.screen import quarantined, status_line
from rollart_hpc.cli.usage import usage_lines
from rollart_hpc.config import packaged
from rollart_hpc.config.load import load_site
from rollart_hpc.errors import RollartError, UserError, command_line
from rollart_hpc.launch.launcher import Launcher, launcher_of_run
from rollart_hpc.launch.status import RunStatus
from rollart_hpc.launch.summary import table
from rollart_hpc.observe.status import AffinityStatus
from rollart_hpc.rundir import RunDir, known_runs, open_run_dir

_TITLES = ("run", "state", "step", "scores", "jobs", "age")


def status(args: argparse.Namespace) -> int:
    if args.all and (args.run_dir or args.follow):
        raise UserError("--all is for all runs: it takes no RUN_DIR and no -f", "leave one of them out")
    if args.all:
        return _all(args)
    runs = [] if args.run_dir else known_runs(*site_roots())
    run = open_run_dir(args.run_dir) if args.run_dir else runs[0]
    launcher = launcher_of_run(run)
    if args.follow:
        return follow_to_the_end(run, launcher)
    current = launcher.watch(run).look()
    if current.state.is_over:
        launcher.account(current)
    if args.json:
        _print_json(current)
        return 0
    print("\n".join(_lines(run, current, launcher)))
    if len(runs) > 1:
        print(f"{len(runs) - 1} older runs: rollart-hpc status --all")
    return 0


# --- one run -------------------------------------------------------------------------------------


def _lines(run: RunDir, current: RunStatus, launcher: Launcher) -> list[str]:
    reason = f": {current.reason}" if current.reason else ""
    lines = [str(run.path), f"{current.state}, attempt {current.attempt}{reason}", status_line(current)]
    lines += quarantined(current)
    lines += [f"{name} is set aside: {reason}" for name, reason in current.aside.items()]
    if current.updates_skipped:
        lines.append(f"{current.updates_skipped} updates were skipped because their gradients were not finite")
    for name, task in current.tasks.items():
        if task.last_error and not task.quarantined:
            lines.append(f"last failure of {name}: {task.last_error}")
    for name, task in current.tasks.items():
        if task.affinity is not None:
            lines.append(_chosen(name, task.affinity))
    for name, pool in current.pools.items():
        if pool.kv_tokens and not current.state.is_over:
            used, tokens = pool.kv_used_tokens, pool.kv_tokens
            lines.append(
                f"KV use of pool {name}: {used} of {tokens} tokens ({used / tokens:.0%}), {pool.engines} engines"
            )
    lines += _counts("dropped", current.dropped)
    lines += _counts("lost", {role: workers.lost for role, workers in current.workers.items()})
    lines += [change.as_text() for change in current.changes]
    lines += [*_job_lines(current), *launcher.history(run), *usage_lines(current)]
    if current.state.can_resume:
        lines.append(f"resume it with: {command_line('resume', run.path)}")
    return lines


def _chosen(task: str, own: AffinityStatus) -> str:
    if not own.is_measured:
        return f"affinity of {task}: every pool, until enough turns were measured"
    costs = ", ".join(f"{1000 * seconds:.3g} ms in {pool}" for pool, seconds in own.turn_s.items())
    return (
        f"affinity of {task}: {own.choice}; a turn has {own.prompt_tokens:.0f} prompt tokens ({own.reuse:.0%} reused) "
        f"and {own.decode_tokens:.1f} answer tokens: {costs}"
    )


def _job_lines(current: RunStatus) -> list[str]:
    return [
        f"job {row.job}{f' ({row.unit})' if row.unit else ''}: {row.state.lower()} in partition {row.partition}"
        + (f" on {row.nodes}" if row.nodes else "")
        + (f", {row.left} left" if row.left and row.nodes and not current.state.is_over else "")
        + (f": {row.reason}" if row.reason else "")
        for row in current.jobs
    ]


def _counts(title: str, counts: dict[str, int]) -> list[str]:
    listed = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    return [f"{title}: {listed}"] if listed else []


# --- all runs ------------------------------------------------------------------------------------


def _all(args: argparse.Namespace) -> int:
    runs = known_runs(*site_roots())
    found = _survey(runs)
    shown = [found[run.path] for run in runs if run.path in found]
    if args.json:
        _print_json(shown)
        return 0
    print("\n".join(table(_TITLES, [_row(one) for one in shown])))
    return 0


def _survey(runs: list[RunDir]) -> dict[Path, RunStatus]:
    """One query per launcher. A damaged run directory is left out here; `status RUN_DIR` says what is wrong."""
    by_launcher: dict[Launcher, list[RunDir]] = {}
    for run in runs:
        with suppress(RollartError):
            by_launcher.setdefault(launcher_of_run(run), []).append(run)
    found = (one for launcher, mine in by_launcher.items() for one in launcher.survey(mine))
    return {Path(one.run_dir): one for one in found}


def _row(one: RunStatus) -> tuple[str, ...]:
    scores = [f"{name} {t.score_last:.2f}" for name, t in one.tasks.items() if t.score_last is not None]
    jobs = dict.fromkeys(row.job.partition("+")[0] for row in one.jobs)
    age = _age(time.time() - RunDir(one.run_dir).created_s)
    return (one.run_dir, one.state, f"{one.step}/{one.steps}", ", ".join(scores), ", ".join(jobs), age)


def _age(seconds: float) -> str:
    for length_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def site_roots() -> list[Path]:
    """The run roots of the user's sites."""
    roots = []
    for name in packaged.user_names("sites"):
        with suppress(RollartError):
            root = load_site(name).run_root
            roots += [Path(os.path.expandvars(root)).expanduser()] if root else []
    return roots


def _print_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())
