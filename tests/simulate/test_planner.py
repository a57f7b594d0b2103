"""`plan --optimize`: a whole search on a small cluster, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollart_hpc.cli.main import main
from rollart_hpc.config.load import load_all
from tests.simulate.test_cluster import SMALL

ARGUMENTS = ["plan", "qwen3-8b-h800-h20", *SMALL, "--model", "qwen3-8b", "--seeds", "2", "--steps", "2"]


def plan(*more: str) -> int:
    return main([*ARGUMENTS, *more])


def test_a_better_run_is_found_confirmed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "better.yaml"
    assert plan("--optimize", "tokens", "--budget", "20m", "--vary", "trainer", "--gpus", "h800=16",
                "--assume", "mfu=0.0005",
                "--write", str(file), "--json") == 0  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert told["before"][0]["bound"] == "trainer"
    assert told["is_complete"] and told["tried"] >= 2 and told["gain"] > 1.2
    assert len(told["before"]) == len(told["after"]) == 2 and "no prefix reuse" in told["sensitivity"]
    assert told["overrides"]["pools.compute.engines"] + told["overrides"]["trainer.ranks"] <= told["gpus"]["h800"]
    written = load_all(file, [], needs_model=False).config
    assert written.pools["compute"].engines == told["overrides"]["pools.compute.engines"]
    assert written.flow.groups_per_step == 4, "with the overrides of the command line"
    assert plan("--optimize", "step", "--write", str(file)) == 2 and "the file exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--budget", "soon"], "--budget soon is no duration"),
        (["--budget", "0.01s"], "is too short: one simulation took"),
        (["--vary", "tensr"], "did you mean tensor"),
        (["--gpus", "h800=2000"], "more than site h800-h20 gives a job"),
        (["pools.bandwidth.engines=0", "--gpus", "h800=4"], "pools: no engines"),
        (["--site", "local"], "site local is one machine"),
        (["--model", "qwen4"], "neither a known model"),
    ],
)
def test_what_it_refuses(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--optimize", "step", *arguments) == 2
    assert expected in capsys.readouterr().err


def test_classes_without_figures_or_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("configs/sites/h800-h20.yaml").read_text()
    (tmp_path / "bare.yaml").write_text(text.replace(" gpu: h800,", ""))
    assert plan("--optimize", "step", "--site", str(tmp_path / "bare.yaml")) == 2
    assert "classes.h800.tflops" in capsys.readouterr().err
    (tmp_path / "free.yaml").write_text(text.replace("gpu: h800,", "gpu: h100,").replace("gpu: h20,", "gpu: h200,"))
    assert plan("--optimize", "cost", "--site", str(tmp_path / "free.yaml")) == 2
    assert "no cost" in capsys.readouterr().err
