"""Engine and trainer of another package, installed beside this one, train as ours do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollart_hpc.observe import ledger
from tests.backends.installing import install

pytestmark = pytest.mark.slow


def test_three_steps_with_both(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = install(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    kinds = ["engine.kind=plain", "trainer.kind=plain"]
    run.start("steps=3", *kinds, "engine.options.tokens_per_step=2", "trainer.options.momentum=0.5").wait()
    status = run.status()
    assert (status["state"], status["step"]) == ("finished", 3)
    assert status["pools"] == {
        name: {"engines": 1, "kv_tokens": 0, "kv_used_tokens": 0} for name in ("compute", "bandwidth")
    }
    lines = ledger.read(run.directory / "ledger.jsonl")
    assert len(lines) == 3 and not ledger.problems(lines, group_size=2, alpha=1)
    assert len({line.digest for line in lines}) == 3
    assert max(line["metrics"]["logprob_gap_max"] for line in run.steps()) < 1e-4
    assert (run.directory / "checkpoints" / "step_2" / "trainer" / "state.pt").is_file()
