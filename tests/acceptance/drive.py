"""How acceptance drives the product: by the commands a user types. Owns where results are written."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"


def rollart(*arguments: str) -> str:
    """Its standard output; what it says else goes to the terminal."""
    command = [sys.executable, "-m", "rollart_hpc.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, text=True, check=True, stdout=subprocess.PIPE).stdout


def watched(*arguments: str) -> tuple[int, str]:
    """Exit code and whole output of a command whose output is shown as it comes."""
    command = [sys.executable, "-m", "rollart_hpc.cli", *arguments]
    lines: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, "".join(lines)


@dataclass
class Trained:
    """A run that was started and waited for."""

    run_dir: Path
    code: int
    seconds: float
    output: str

    @property
    def status(self) -> dict[str, Any]:
        """Empty if the run did not finish."""
        return {} if self.code else json.loads(rollart("status", str(self.run_dir), "--json"))


def train(run: str, run_dir: Path, *overrides: str, site: str = "") -> Trained:
    """On this machine, or as a job of the development cluster."""
    command = ["submit", run, "--site", site, "--wait"] if site else ["run", run]
    began_s = time.monotonic()
    code, output = watched(*command, *overrides, "--run-dir", str(run_dir))
    return Trained(run_dir, code, time.monotonic() - began_s, output)


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]


def write_page(name: str, lines: list[str]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.md").write_text("\n".join([*lines, ""]))
