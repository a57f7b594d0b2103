"""What the controller writes down, over more than one controller of a run."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from rollart_hpc.config.schema import ModelConfig, RunConfig, TaskConfig
from rollart_hpc.flow import events as ev
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.rules import rules_of
from rollart_hpc.observe import metrics
from rollart_hpc.observe.status import PoolStatus, read_status
from rollart_hpc.roles.journal import Journal
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import LineKind, ProcessState, RunState
from rollart_hpc.wire import messages as ms

CONFIG = RunConfig(model=ModelConfig("directory", "model"), tasks={"lake": TaskConfig(name="lake")})


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run").create()


def begin(run: RunDir, saved: dict | None = None) -> Journal:
    return Journal(run, CONFIG, Core(rules_of(CONFIG), run.begin_attempt(), saved), Counter())


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


def test_kv_of_the_pools_as_engines_report_it(run):
    journal = begin(run)
    hello = ms.Hello("engine", "e0", "n", "compute", 4, "", 1, "x", 1, kv_tokens=1000)
    for each in (hello, msgspec.structs.replace(hello, name="e1"), msgspec.structs.replace(hello, name="e2", pool="b")):
        journal.joined(each)
    for name, used in (("e0", 400), ("e1", 500), ("e0", 100), ("e2", 0), ("gone", 7)):
        journal.saw(name, ms.Generated(1, "t", 1, 1, kv_used_tokens=used))
    assert journal.status().pools == {"compute": PoolStatus(2, 2000, 600), "b": PoolStatus(1, 1000, 0)}
    commit(journal, 1)
    journal.gone(hello, "exited", ProcessState.LOST)
    journal.saw("e1", ms.Prefilled(1, "t", "kv", 1, kv_used_tokens=700))
    commit(journal, 2)
    assert journal.status().pools["compute"] == PoolStatus(1, 1000, 700)
    steps = metrics.of_kind(metrics.read(run.metrics), "step")
    assert [step["kv_used"] for step in steps] == [{"compute": 0.45, "b": 0.0}, {"compute": 0.7}]


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


def test_a_status_is_written_aside_and_the_last_one_before_the_end(run):
    journal = begin(run)
    journal.tick(0.0)
    deadline_s = time.monotonic() + 60
    while not run.status.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert read_status(run.status).state == "starting"
    journal.ended("finished", "all steps are done")
    assert read_status(run.status).state == "finished"
    journal.close()


def test_a_disk_that_can_t_take_the_status_is_told(run):
    journal = begin(run)
    run.status.mkdir()  # no file can take its place
    with pytest.raises(OSError, match="directory"):
        for now in range(6000):
            journal.tick(float(now))
            time.sleep(0.01)
