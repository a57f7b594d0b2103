"""The package of docs/backends.md, installed as pip does it, into a directory of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent / "package"


def install(directory: Path, package: Path = PACKAGE) -> Path:
    """What must be on the path for it. Its source is copied because a build writes there."""
    source, site = directory / "source", directory / "site"
    shutil.copytree(package, source, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "-t", str(site), str(source)], capture_output=True, text=True, check=False, cwd=directory
    )
    assert done.returncode == 0, done.stderr
    return site
