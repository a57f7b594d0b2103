"""The real controller under the events of 3,072 and 10,000 simulated GPUs. Writes docs/results/streamed-scale.md."""

from __future__ import annotations

import gc
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollart_hpc.simulate.build import build
from tests.acceptance.drive import RESULTS, table, write_page
from tests.acceptance.simulated_scale import SIZES, Size
from tests.acceptance.simulated_scale import _case as case_of_size
from tests.acceptance.streamed import Streamed

SKIPPED, TURNS = 100_000, 150_000


def streamed_scale() -> bool:
    rows = [_streamed(size) for size in SIZES]
    (RESULTS / "streamed-scale.json").write_text(json.dumps(rows, indent=1) + "\n")
    write_page("streamed-scale", _page(rows))
    return True


def _streamed(size: Size) -> dict[str, Any]:
    case = case_of_size(size)
    spec = build(case, steps=100)
    with tempfile.TemporaryDirectory() as scratch:
        streamed = Streamed(Path(scratch) / "run", case.config, spec, SKIPPED, TURNS)
        gc.collect()
        gc.disable()  # as the controller does
        cost = streamed.run(100)
        gc.enable()
    real, simulated = streamed.controller.core, streamed.cluster.core
    assert not streamed.controller.hub.counters and real.version == simulated.version
    print(f"{size.gpus} GPUs: {cost.us_per_turn:.0f} us per turn", flush=True)
    figures = {"us_per_turn": cost.us_per_turn, "turns_per_s": cost.turns / cost.virtual_s}
    slots = sum(count for _, count in spec.envs)
    return {**asdict(size), "engines": len(spec.engines), "slots": slots, **asdict(cost), **figures}


def _page(rows: list[dict[str, Any]]) -> list[str]:
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    shown = [
        [
            f"{row['gpus']:,}", str(row["engines"]), f"{row['slots']:,}", f"{row['turns_per_s']:,.0f}",
            f"{row['us_per_turn']:.0f} us", f"{row['turns_per_s'] * row['us_per_turn'] / 1e6:.1%}",
            f"{row['slowest_ms']:.0f} ms",
        ]
        for row in rows
    ]  # fmt: skip
    return [
        "# The controller under thousands of simulated GPUs",
        "",
        "Every event of a simulated cluster becomes the message that a process would send, with a payload of its",
        "size, and reaches a real controller: decoding, membership, checks, payloads, core, journal and its files. Its",
        "core must do what the simulated one does; a test and this page's run compare them. The hub has no socket, so",
        "ZeroMQ and encryption are not in the figures: [the controller at any size](hub.md) has them. **No GPU was",
        f"used.** CPU time on a machine with {os.cpu_count()} cores and {load:.1f} running processes per core at the",
        "end. Printed by:",
        "",
        "```",
        "make acceptance-streamed-scale",
        "```",
        "",
        "Qwen3-8B on engines of 4 GPUs, one GPU in six trains, workload `paper-informed`, mode `rollart` with whole",
        f"batches; {TURNS:,} turns after the first {SKIPPED:,}. *Turns/s* is what the cluster wants in its own time,",
        "*of a core* what that costs the controller. *Slowest* is the CPU time of a message with all that it set off.",
        "",
        *table(["GPUs", "engines", "slots", "turns/s", "CPU per turn", "of a core", "slowest"], shown),
        "",
        "`streamed-scale.json` has the raw figures.",
    ]
