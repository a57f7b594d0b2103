from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.schema import ModelConfig, RunConfig, TaskConfig
from rollart_hpc.rundir import RunDir

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command as a user types it, from some directory."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rollart_hpc.cli", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)

    return call


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run that could start, of a model that exists by name only."""
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / name).write_text("{}")
    (tmp_path / "lake.py").write_text(
        "class Lake:\n    reset = step = outcome = close = None\n\ndef score(transcript): ...\n"
    )
    (tmp_path / "lake.yaml").write_text("environment: lake.py:Lake\nreward: lake.py:score\n")
    path = tmp_path / "mine.yaml"
    path.write_text("tasks: {lake: {file: ./lake.yaml}}\nmodel: {kind: directory, path: model}\nsteps: 3\n")
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run directory as a killed run leaves it."""
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    run = RunDir(tmp_path / "a run").create()
    config = RunConfig(model=ModelConfig("directory", str(model)), tasks={"lake": TaskConfig(name="lake")})
    write_resolved(run.config, config)
    return run
