"""What the controller writes down, over more than one controller of a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rollart_hpc.config.rundir import RunDir
from rollart_hpc.config.schema import ModelConfig, RunConfig, TaskConfig
from rollart_hpc.flow import events as ev
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.policy import policy_of
from rollart_hpc.observe import metrics
from rollart_hpc.roles.journal import Journal
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
    steps = metrics.of_kind(metrics.read(run.metrics), "step")
    assert [step["tokens"] for step in steps] == [1000, 50]
    assert steps[1]["tokens_per_s"] == pytest.approx(50 / steps[1]["step_s"])
