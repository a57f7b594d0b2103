"""`simulate` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollart_hpc.cli.main import main

SMALL = ["flow.groups_per_step=2", "flow.group_size=2", "pools.compute.engines=2", "pools.bandwidth.engines=1"]
SMALL += ["trainer.ranks=2", "env.workers=1", "tasks.frozenlake.max_turns=5", "flow.redundancy=0"]
RUN = ["simulate", "qwen3-8b-h800-h20", *SMALL, "--model", "qwen3-8b", "--steps", "2"]


def test_modes_are_compared_and_assumptions_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main([*RUN, "--modes", "sync", "rollart", "--page", str(page), "--keep", str(tmp_path / "kept")]) == 0
    shown = capsys.readouterr().out
    assert "rollart, compute" in shown
    assert "assumed: mfu=0.35" in shown
    assert "sync" in page.read_text()
    assert main(["report", str(tmp_path / "kept")]) == 0
    assert (tmp_path / "kept" / "report.html").exists()


def test_json_has_every_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--seeds", "2", "--json", "--assume", "mfu=0.5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["seed"] for each in found["modes"]["rollart"]["seeds"]] == [0, 1]
    assert any(note.startswith("mfu=0.5") for note in found["assumed"])
    assert found["modes"]["rollart"]["seeds"][0]["cost_per_step"] > 0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--modes", "fast"], "there is no such mode"),
        (["--keep", "."], "already exists"),
        (["--steps", "0"], "nothing would be simulated"),
        (["--workload", "nothing"], "neither a preset nor a directory"),
        (["--workload", "paper"], "does not describe it"),
        (["--assume", "mfu"], "not a number"),
        (["--model", "gpt"], "neither a known model"),
        (["--site", "local"], "has no class with figures"),
    ],
)
def test_wrong_input_says_what_to_do(wrong: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, *wrong]) == 2
    assert told in capsys.readouterr().err
