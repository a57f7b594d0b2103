"""`export`, `eval` and `fork`: what they refuse, before anything is made. tests/runs/home.py runs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from rollart_hpc.checkpoint_dirs import seal
from rollart_hpc.cli.evaluate import _row
from rollart_hpc.cli.model_card import model_card
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.observe.estimates import estimate
from rollart_hpc.observe.metrics import MetricsLog
from rollart_hpc.rundir import RunDir

Cli = Callable[..., "CompletedProcess[str]"]


def save(run: RunDir, *steps: int) -> None:
    for step in steps:
        run.checkpoint(step).mkdir()
        seal(run.checkpoint(step), {"version": step, "attempt": 1})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("export", "a run", "out"), "has no checkpoint"),
        (("fork", "a run"), "has no checkpoint"),
        (("eval", "a run"), "has no checkpoint"),
        (("eval", "nothing", "lake.yaml"), "is neither a run nor a model"),
        (("eval", "model"), "no task is named"),
        (("eval", "model", "no_such_task"), "no_such_task"),
        (("export", "nothing", "out"), "there is no run directory"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], said: str, cli: Cli, run: RunDir, run_file: Path) -> None:
    done = cli(*arguments)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (run.path.parent / "out").exists()


def test_a_step_without_a_checkpoint(cli: Cli, run: RunDir) -> None:
    save(run, 2, 4)
    done = cli("export", run.path, "out", "--step", "3")
    assert done.returncode == 2 and "has no checkpoint of step 3" in done.stderr and "choose one of 2, 4" in done.stderr


def test_a_directory_that_exists_is_left_alone(cli: Cli, run: RunDir, tmp_path: Path) -> None:
    save(run, 2)
    (tmp_path / "out").mkdir()
    done = cli("export", run.path, "out")
    assert done.returncode == 2 and "already exists" in done.stderr and not list((tmp_path / "out").iterdir())


def test_the_card_tells_the_newest_scores_up_to_the_step(run: RunDir) -> None:
    log = MetricsLog(run.metrics)
    for version, success in ((0, 0.125), (2, 0.5), (4, 0.75)):
        log.validation({"version": version, "task": "lake", "plays": 8, "success": success, "reward": None})
    log.close()
    config = read_resolved(run.config)
    card = model_card(run, config, 3, "abc", is_adapter=False)
    assert "| lake | 0.500 | - | 8 | 2 |" in card and "0.750" not in card
    assert "abc" in card and run.run_id in card and "library_name: transformers" in card
    card = model_card(run, config, 3, "abc", is_adapter=True)
    assert "library_name: peft" in card and f"base model: {config.model.path}" in card


def test_the_card_of_a_run_that_never_validated(run: RunDir) -> None:
    assert "has not validated" in model_card(run, read_resolved(run.config), 3, "abc", is_adapter=False)


def test_a_row_of_eval() -> None:
    each = {"seed": [1, 1, 3, 3], "reward": [1, 0, 1, 1], "success": [True, False, True, True]}
    assert _row("lake", estimate({"each": each})) == (
        "lake", "2", "4", "0.750", "0.198 to 0.973", "0.750 +- 0.250", "2: 1.000",
    )  # fmt: skip
    assert _row("lake", None)[1:3] == ("0", "0")
