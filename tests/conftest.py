"""What every test shares: few threads, and no runs outside the test's own directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# On a loaded machine an example takes as long as it takes.
settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def run_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs without --run-dir go here."""
    root = tmp_path / "run root"
    monkeypatch.setenv("ROLLART_RUN_ROOT", str(root))
    return root
