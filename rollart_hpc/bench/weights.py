"""Compares weight transfer through relays with the bare collective, and an install with a memcpy.

Both sides of a pair move the same bytes over the same collective between the same two processes. They take turns, so
that noise of the machine affects both equally. Medians are reported. `bench.heavy.relays` and `bench.heavy.install`
measure, in their own processes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.launch.leader import find_mpiexec

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    collectives: tuple[str, ...] = ("gloo", "mpi")
    total_mb: int = 1024
    bucket_mb: int = 128
    pairs: int = 5

    def __post_init__(self) -> None:
        if self.bucket_mb < 8 or self.total_mb < self.bucket_mb or self.pairs < 1:
            raise UserError(
                f"can't measure {self.total_mb} MB in buckets of {self.bucket_mb} MB with {self.pairs} pairs",
                "use buckets of at least 8 MB, at least one bucket and at least one pair",
            )


class Row(msgspec.Struct):
    """One collective, in steady state. `ratio_to_raw`: speed through relays, with checksums, over the speed of the bare
    collective. `ratio_less_checksum`: the same, with the time of one checksum pass subtracted."""

    collective: str
    ratio_to_raw: float
    ratio_less_checksum: float
    relay_gb_per_s: float
    raw_gb_per_s: float
    checksum_share: float  # time of one checksum pass over the bytes, as a share of the time through relays


class Exposed(msgspec.Struct):
    """`exposed_to_memcpy`: (install + KV rebuild) over (memcpy of the same bytes + the same rebuild)."""

    exposed_to_memcpy: float
    install_ms: float
    memcpy_ms: float
    rebuild_ms: float
    model_mb: float


def bench_weights(settings: Settings, say: Say) -> tuple[list[Row], Exposed]:
    rows = []
    for collective in settings.collectives:
        rows.append(_measure(settings, collective))
        say(f"  {collective}: {rows[-1].ratio_to_raw:.2f} of the bare collective")
    exposed = _exposed(settings.pairs)
    say(f"  install: {exposed.exposed_to_memcpy:.2f} of a memcpy and the KV rebuild")
    return rows, exposed


def _measure(settings: Settings, collective: str) -> Row:
    total = settings.total_mb << 20
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rollart-bench-", dir=root) as scratch:
        command = [sys.executable, "-m", "rollart_hpc.bench.heavy.relays", scratch, str(total)]
        command += [str(settings.bucket_mb << 20), str(settings.pairs)]
        told = _told(
            [[find_mpiexec(), "-n", "2", *command]] if collective == "mpi" else [[*command, "0"], [*command, "1"]]
        )
    if told["collective"] != collective:
        what = f"the relays used {told['collective']} instead of {collective}"
        raise SiteError(what, "check that mpi4py works here, or choose other --collectives")
    pairs = list(zip(told["raw_s"], told["ours_s"], strict=True))
    ours_s, checksum_s = statistics.median(told["ours_s"]), statistics.median(told["checksum_s"])
    return Row(
        collective,
        statistics.median(raw / ours for raw, ours in pairs),
        statistics.median(raw / (ours - checksum_s) for raw, ours in pairs),
        total / 1e9 / ours_s,
        total / 1e9 / statistics.median(told["raw_s"]),
        checksum_s / ours_s,
    )


def _exposed(pairs: int) -> Exposed:
    with tempfile.TemporaryDirectory(prefix="rollart-bench-") as scratch:
        told = _told(
            [[sys.executable, "-m", "rollart_hpc.bench.heavy.install", str(Path(scratch) / "model"), str(pairs)]]
        )
    return msgspec.convert(told, Exposed)


def _told(commands: list[list[str]]) -> dict[str, Any]:
    """The line of JSON that the first of these processes prints."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(c, stdout=pipe, stderr=pipe, text=True, env=variables) for c in commands]
    outputs = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise SiteError(
                f"a process of the benchmark failed: {errors.strip()[-2000:]}", "fix the error, then try again"
            )
    line: dict[str, Any] = json.loads(outputs[0][0].strip().splitlines()[-1])
    return line


def table(rows: list[Row], exposed: Exposed) -> str:
    lines = [f"{'collective':>12}{'relays':>12}{'bare':>12}{'ratio':>8}{'less checksum':>15}{'one checksum':>14}"]
    for row in rows:
        lines.append(
            f"{row.collective:>12}{row.relay_gb_per_s:>7.2f} GB/s{row.raw_gb_per_s:>7.2f} GB/s{row.ratio_to_raw:>8.2f}"
            f"{row.ratio_less_checksum:>15.2f}{100 * row.checksum_share:>12.0f} %"
        )
    return "\n".join(
        [
            *lines,
            f"install of {exposed.model_mb:.0f} MB {exposed.install_ms:.1f} ms, memcpy {exposed.memcpy_ms:.1f} ms, "
            f"KV rebuild {exposed.rebuild_ms:.1f} ms: {exposed.exposed_to_memcpy:.2f} of memcpy and rebuild",
        ]
    )


def as_json(settings: Settings, rows: list[Row], exposed: Exposed) -> str:
    content = {
        "bench": "weights", "total_mb": settings.total_mb, "bucket_mb": settings.bucket_mb, "pairs": settings.pairs,
        "ratio_to_raw": min(row.ratio_to_raw for row in rows), "rows": rows,
        "exposed_to_memcpy": exposed.exposed_to_memcpy, "exposed": exposed,
    }  # fmt: skip
    return msgspec.json.format(msgspec.json.encode(content)).decode()
