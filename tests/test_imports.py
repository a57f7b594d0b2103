"""What must start without torch does, and what is packaged is what is there."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "transformers", "vllm", "megatron", "mpi4py")
LIGHT = [
    "rollart_hpc.cli.main",
    "rollart_hpc.cli.run",
    "rollart_hpc.cli.status",
    "rollart_hpc.cli.logs",
    "rollart_hpc.cli.control",
    "rollart_hpc.cli.check",
    "rollart_hpc.cli.keys",
    "rollart_hpc.cli.report",
    "rollart_hpc.cli.model",
    "rollart_hpc.models.from_gguf",
    "rollart_hpc.models.smollm2",
    "rollart_hpc.bench.engine",
    "rollart_hpc.bench.trainer",
    "rollart_hpc.bench.weights",
    "rollart_hpc.doctor.quick",
    "rollart_hpc.launch.supervisor",
    "rollart_hpc.launch.local",
    "rollart_hpc.roles.controller",
    "rollart_hpc.roles.env",
    "rollart_hpc.rewards.service",
    "rollart_hpc.roles.reward",
    "rollart_hpc.roles.start",
    "rollart_hpc.simulate.world",
    "rollart_hpc.cli.simulate",
]


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_process_never_imports_torch(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_checking_the_tasks_code_never_imports_torch() -> None:
    code = (
        "import sys; from rollart_hpc.config.load import load_all; load_all('quickstart');"
        f"print('gymnasium' in sys.modules, [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True []"


def test_help_imports_next_to_nothing() -> None:
    code = (
        "import sys; from rollart_hpc.cli.main import build_parser; build_parser().format_help();"
        "print([m for m in ('numpy', 'zmq', 'omegaconf', 'msgspec', 'gymnasium', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_package_and_config_is_packaged() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = set(setup["options"]["packages"].split())
    there = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "rollart_hpc").rglob("__init__.py")}
    assert listed == there | {"rollart_hpc.configs", "rollart_hpc.slurm"}
    for data in ("configs", "slurm"):
        patterns = [p.strip() for p in setup["options.package_data"][f"rollart_hpc.{data}"].split(",")]
        packaged = {path for pattern in patterns for path in (ROOT / data).glob(pattern)}
        assert packaged == {path for path in (ROOT / data).rglob("*.*") if path.name != "constraints.txt"}
