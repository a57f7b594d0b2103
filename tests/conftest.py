"""What every test shares: few threads, and no runs outside the test's own directory."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# On a loaded machine an example takes as long as it takes.
settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")

SMALL = Path(__file__).parent / "runs" / "small.yaml"
SLURM = Path(__file__).parent / "slurm"  # all tests there are slow
# Files that take longest: they come first, so that no worker is left with one at the end.
LONG = (
    "slurm/test_requeue.py",
    "slurm/test_failures.py",
    "runs/test_failures.py",
    "runs/test_weights.py",
    "runs/test_vllm.py",
    "slurm/test_submit.py",
    "slurm/test_classes.py",
    "engines/test_vllm.py",
    "trainers/megatron/test_trainer.py",
    "trainers/fsdp/test_ranks.py",
    "flow/test_core_faults.py",
    "weights/test_direct.py",
    "cli/test_errors.py",
    "envs/test_host.py",
)

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
gc.disable()  # until all modules are there: the collector would go through torch's again and again


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of the slow tests alone: no file without one, or every worker would import torch for nothing."""
    if config.option.markexpr != "slow" or collection_path.suffix != ".py":
        return None
    is_slow = SLURM in collection_path.parents or "mark.slow" in collection_path.read_text()
    return None if is_slow else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path, len(LONG)))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def run_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs without --run-dir go here."""
    root = tmp_path / "run root"
    monkeypatch.setenv("ROLLART_RUN_ROOT", str(root))
    return root


@pytest.fixture(autouse=True)
def no_habits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What whoever runs the tests has set up for clusters of their own does not count."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config home"))
    for name in ("ROLLART_SITE", "SBATCH_ACCOUNT", "SBATCH_QOS", "SBATCH_RESERVATION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def denormals() -> Iterator[None]:
    """A trainer flushes them to zero for its process, which is this one in some tests; hypothesis wants them back."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One base model for all runs, made by the command a user would type."""
    return made_once(tmp_path_factory, "base model", make_base_model)


@pytest.fixture(scope="session")
def raw_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model that has learned next to nothing: good enough to be trained for a few steps."""
    return made_once(tmp_path_factory, "raw model", make_raw_model)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """By the first of pytest's workers that wants it, for all of them."""
    place = factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    directory = place / name / "tiny"
    directory.parent.mkdir(exist_ok=True)
    with open(place / f"{name} lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            make(directory)
    return directory


def make_base_model(directory: Path) -> None:
    command = [sys.executable, "-m", "rollart_hpc.cli", "model", "tiny", str(directory), "--run", str(SMALL)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd="/")
    assert done.returncode == 0 and "base model made in" in done.stdout, done.stderr
    assert [path.name for path in directory.parent.iterdir()] == ["tiny"]


def make_raw_model(directory: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rollart_hpc.trainers.base_model import make_tiny_model;"
        "from rollart_hpc.envs.frozenlake import FrozenLake; from rollart_hpc.envs.sorting import Sorting;"
        "make_tiny_model(Path(sys.argv[1]), 0, [FrozenLake(), Sorting()], steps=5)"
    )
    directory.mkdir()
    subprocess.run([sys.executable, "-c", code, str(directory)], check=True, capture_output=True, timeout=240)
