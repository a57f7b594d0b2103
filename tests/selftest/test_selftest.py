"""The table of `selftest`, its processes and its file. Checks run once, on the CPU; GPU rows are told as not run."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from rollart_hpc.cli.main import main
from rollart_hpc.selftest import run as package
from rollart_hpc.selftest.checks import CHECKS, Check, Row, State, select
from rollart_hpc.selftest.run import facts, run_checks

ON_CPU = ["attention", "fsdp", "checkpoint", "weights-staged", "weights-direct", "engine-torch"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    return {row.name: row for row in run_checks(select([*ON_CPU, "nccl", "fsdp-gpu"]), 0, lambda row: None)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_CPU)
def test_it_passes_here(name: str, results: dict[str, Row]) -> None:
    row = results[name]
    assert row.state is State.PASSED, f"{row.detail}\n{row.figures.get('output')}"
    assert row.figures and row.seconds > 0


@pytest.mark.slow
def test_vllm_and_megatron_pass_where_they_are_installed() -> None:
    for row in run_checks(select(["engine-vllm", "megatron"]), 0, lambda row: None):
        assert row.state is State.PASSED or "is not installed" in row.detail, row


def test_every_check_has_its_function_and_a_name_of_its_own() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        module, _, function = check.function.partition(":")
        assert callable(getattr(import_module(f"rollart_hpc.selftest.heavy.{module}"), function)), check.name
        assert (check.device == "cuda") is (check.gpus > 0) is (check.name.endswith("-gpu") or check.gpus > 0)


def test_what_is_missing_is_said() -> None:
    gpu = Check("x", "", "", "cuda", 2, modules=())
    assert gpu.obstacle(0) == "not run: needs 2 GPUs, there is none"
    assert gpu.obstacle(1) == "not run: needs 2 GPUs, there is 1"
    assert gpu.obstacle(2) == ""
    assert "no_such_module is not installed" in Check("x", "", "", modules=("no_such_module",)).obstacle(0)
    assert Check("x", "", "", modules=(), only_without_gpus=True).obstacle(1) == "not run: this machine has GPUs"


def test_a_check_that_fails_dies_or_hangs_is_a_failed_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(function: str, limit_s: float = 60.0) -> Row:
        monkeypatch.setattr(package.subprocess, "Popen", popen_of(function))
        (found,) = run_checks([Check("attention", "", "", modules=(), limit_s=limit_s)], 0, lambda row: None)
        return found

    original = package.subprocess.Popen

    def popen_of(code: str):  # type: ignore[no-untyped-def]
        def popen(command: list[str], **how: object) -> object:
            return original([command[0], "-c", code, *command[4:]], **how)  # type: ignore[call-overload]

        return popen

    dead = row("import os; print('last words', flush=True); os._exit(3)")
    assert (dead.state, dead.detail) == (State.FAILED, "exit code 3") and "last words" in dead.figures["output"]
    assert row("import time; time.sleep(600)", 0.5).detail == "no end within 0.5 s"
    assert row("pass").detail == "it ended without a result"


def test_the_file_names_no_host_and_no_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "num_gpus", lambda: 0)
    file = tmp_path / "found.json"
    assert main(["selftest", "--only", "devices", "nccl", "--output", str(file), "--json"]) == 0
    found = json.loads(file.read_text())
    assert found == json.loads(capsys.readouterr().out)
    assert [row["state"] for row in found["rows"]] == ["skipped", "skipped"]
    assert found["facts"].keys() == facts().keys() and str(tmp_path) not in file.read_text()
    assert main(["selftest", "--only", "attentoin"]) == 2
    assert "attention" in capsys.readouterr().err
