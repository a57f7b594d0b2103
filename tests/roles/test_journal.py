"""What the controller writes down, over more than one controller of a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rollart_hpc.config.schema import ModelConfig, RunConfig, TaskConfig
from rollart_hpc.flow import events as ev
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.policy import policy_of
from rollart_hpc.observe import metrics
from rollart_hpc.roles.journal import Journal
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import LineKind, ProcessState, RunState
from rollart_hpc.wire import messages as ms

CONFIG = RunConfig(model=ModelConfig("directory", "model"), tasks={"lake": TaskConfig(name="lake")})


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run").create()


def begin(run: RunDir, saved: dict | None = None) -> Journal:
    return Journal(run, CONFIG, Core(policy_of(CONFIG), run.begin_attempt(), saved), Counter())


def commit(journal: Journal, version: int) -> None:
    committed = ms.Committed(version - 1, version, "parent", "digest", {}, 0.1, 0.1)
    journal.step(ev.RecordStep(version, journal.core.attempt, ()), committed)


def test_a_restored_run_counts_only_the_tokens_of_its_own_steps(run):
    first = begin(run)
    first.core.tally.tasks["lake"].decode_tokens = 1000
    commit(first, 1)
    second = begin(run, first.core.snapshot())
    second.core.tally.tasks["lake"].decode_tokens += 50
    commit(second, 2)
    steps = metrics.of_kind(metrics.read(run.metrics), LineKind.STEP)
    assert [step["tokens"] for step in steps] == [1000, 50]
    assert steps[1]["tokens_per_s"] == pytest.approx(50 / steps[1]["step_s"])


def join(journal: Journal, role: str, pid: int = 0) -> ms.Hello:
    hello = ms.Hello(role, role, "cpu", "", 1, "", journal.core.attempt, "x", pid)
    journal.joined(hello)
    return hello


def counts(journal: Journal, role: str) -> tuple[int, int, int]:
    workers = journal.status().workers[role]
    return workers.joined, workers.lost, workers.left


def test_who_ended_in_good_order_is_not_lost(run):
    first = begin(run)
    for role in ("supervisor", "env", "reward"):
        join(first, role, pid=1)
    first.gone(join(first, "engine"), "exited with code -9", ProcessState.LOST)
    join(first, "engine")
    first.ended(RunState.DRAINED, "asked to")
    second = begin(run)
    join(second, "supervisor", pid=1)  # as it may be in a container
    assert counts(second, "controller") == counts(second, "supervisor") == (2, 0, 1)
    assert counts(second, "env") == (1, 0, 1) and counts(second, "engine") == (2, 1, 1)


def test_a_killed_controller_is_lost_once_with_all_it_had_but_the_supervisor(run):
    for controllers in (1, 2, 3):
        journal = begin(run)
        join(journal, "supervisor", pid=1)
        join(journal, "env", pid=controllers)
        assert counts(journal, "controller") == counts(journal, "env") == (controllers, controllers - 1, 0)
        assert counts(journal, "supervisor") == (1, 0, 0)
    journal = begin(run)  # everything was killed, then resumed
    join(journal, "supervisor", pid=2)
    assert counts(journal, "supervisor") == (2, 1, 0)
