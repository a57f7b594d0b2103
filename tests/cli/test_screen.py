from __future__ import annotations

import io
import json
from typing import Any

import pytest
from msgspec.structs import replace

from rollart_hpc.cli.screen import CLEAR, LiveScreen, progress_bar, status_line, summary
from rollart_hpc.observe.status import StalenessStatus, Status, TaskStatus, WorkerStatus
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState

STATUS = Status(
    state=RunState.FINISHED, step=2, steps=3, tokens_per_s=10.0,
    tasks={"lake": TaskStatus(score_first=0.25, score_last=0.75, validations=2), "new": TaskStatus()},
    staleness=StalenessStatus(bound=1, max_trained=1),
    workers={"env": WorkerStatus(alive=2), "supervisor": WorkerStatus(alive=1)},
)  # fmt: skip
STEP: dict[str, Any] = {
    "kind": "step", "step": 1, "version": 2, "step_s": 1.5, "tokens_per_s": 10.0,
    "success": {"lake": 0.5}, "staleness": {"0": 1, "1": 3},
}  # fmt: skip
VALIDATION = {"kind": "validation", "version": 2, "task": "lake", "success": 0.75, "plays": 128}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def append(run: RunDir, *records: dict[str, Any], torn: str = "") -> None:
    with open(run.metrics, "a") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records) + torn)


def test_a_line_per_step_and_validation_where_there_is_no_terminal(run: RunDir) -> None:
    append(run, STEP)  # of an earlier attempt: not shown again
    out = io.StringIO()
    screen = LiveScreen(run, out=out)
    append(run, STEP, VALIDATION, {"kind": "event"}, torn='{"kind": "st')
    screen.show(STATUS)
    screen.show(STATUS)
    screen.say("engine-compute-0 ended")
    assert out.getvalue().splitlines() == [
        "step 2/3 in 1.5 s | lake 0.50 | 10 tok/s | staleness 1/1 | env 2",
        "validation of version 2: lake success 0.750 over 128 plays",
        "engine-compute-0 ended",
    ]


def test_what_goes_wrong_with_a_task_is_shown(run: RunDir) -> None:
    out = io.StringIO()
    screen = LiveScreen(run, out=out)
    trouble = {"kind": "event", "name": "new", "detail": "8 resets failed"}
    append(run, {**trouble, "what": "task_failed"}, {**trouble, "what": "task_quarantined"})
    append(run, {**VALIDATION, "plays": 3, "failed": 1}, {**VALIDATION, "success": None, "plays": 0, "failed": 4})
    screen.show(STATUS)
    assert out.getvalue().splitlines() == [
        "warning: task new failed for the first time: 8 resets failed",
        "warning: task new is quarantined: 8 resets failed",
        "validation of version 2: lake success 0.750 over 3 plays, 1 more failed",
        "validation of version 2: lake has no score: all 4 plays failed",
    ]


def test_half_a_line_that_was_mended_is_skipped(run: RunDir) -> None:
    run.metrics.write_text('{"kind":"ev')
    out = io.StringIO()
    screen = LiveScreen(run, out=out)
    with run.metrics.open("a") as file:
        file.write("\n")
    append(run, VALIDATION)
    screen.show(STATUS)
    assert out.getvalue().startswith("validation of version 2") and out.getvalue().count("\n") == 1


def test_one_updating_line_on_a_terminal(run: RunDir) -> None:
    out = Terminal()
    with LiveScreen(run, out=out) as screen:
        append(run, STEP)
        screen.show(STATUS)
        screen.say("news")
    line = "[######----] 1.50 s to go | step 2/3 | lake 0.50 (0.25 -> 0.75) | new | 10 tok/s | staleness 1/1 | env 2"
    assert out.getvalue() == f"{CLEAR}{line[:79]}{CLEAR}news\n{line[:79]}\n"


@pytest.mark.parametrize(
    ("step", "steps", "took_s", "shown"),
    [
        (0, 40, [], "[----------]"),
        (10, 40, [1.0, 3.0], "[##--------] 1 min 0 s to go |"),
        (39, 40, [2.0], "[#########-] 2.00 s to go |"),
        (40, 40, [2.0], "[##########]"),
        (0, 0, [], "[##########]"),
    ],
)
def test_the_progress_bar(step: int, steps: int, took_s: list[float], shown: str) -> None:
    assert progress_bar(Status(step=step, steps=steps), took_s) == shown


def test_quiet_shows_nothing(run: RunDir) -> None:
    out = io.StringIO()
    screen = LiveScreen(run, quiet=True, out=out)
    append(run, STEP)
    screen.show(STATUS)
    screen.say("news")
    assert out.getvalue() == ""


def test_the_summary_tells_first_and_last_scores() -> None:
    assert summary(STATUS) == ["finished after 2 of 3 steps", "  lake: success 0.250 -> 0.750"]


def test_a_single_validation_is_one_number_and_nobody_is_not_listed() -> None:
    once = {"lake": TaskStatus(score_first=0.0, score_last=0.0, validations=1)}
    status = replace(STATUS, tasks=once, workers={"env": WorkerStatus()})
    assert summary(status)[1:] == ["  lake: success 0.000"]
    assert status_line(status) == "step 2/3 | lake (0.00) | 10 tok/s | staleness 1/1"


def test_the_summary_names_quarantined_tasks() -> None:
    status = replace(STATUS, tasks={"bad": TaskStatus(quarantined=True, quarantine_reason="8 resets failed")})
    assert summary(status)[1:] == ["  bad is quarantined: 8 resets failed"]
    assert " | bad quarantined | " in status_line(status)
