"""The wheel: complete, and usable from any directory."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="needs setuptools")
def test_an_installed_wheel_finds_its_files_from_anywhere(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "site"
    for name in ("rollart_hpc", "configs", "slurm"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*build, str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("rollart_hpc-*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(target)
    there = {path.relative_to(ROOT) for path in (ROOT / "rollart_hpc").rglob("*.py")}
    assert there == {path.relative_to(target) for path in (target / "rollart_hpc").rglob("*.py")}
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "rollart_hpc.cli", "check", "quickstart"],
        env={**os.environ, "PYTHONPATH": str(target)},
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "no problems" in done.stdout
    code = (
        "from rollart_hpc.config import packaged; print(packaged.directory('runs'));"
        "from rollart_hpc.devcluster.topology import templates; print(templates())"
    )
    where = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(target)},
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=True,
    )
    package = target / "rollart_hpc"
    assert where.stdout.split("\n")[:2] == [str(package / "configs" / "runs"), str(package / "slurm" / "devcluster")]
    files = package / "slurm" / "devcluster"
    assert (files / "slurm.conf").is_file() and (files / "layouts" / "default.toml").is_file()
