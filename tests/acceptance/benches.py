"""The benchmarks against the bare libraries. Their goals are checked here, not in tests: a shared machine is noisy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.acceptance.drive import RESULTS, rollart, table, write_page
from tests.acceptance.smollm2 import model_directory

ENGINE, TRAINER, WEIGHTS, EXPOSED = 0.95, 0.9, 0.8, 1.5  # at least, at least, at least, at most


def benches(keep: Path) -> bool:
    model = str(model_directory(keep))
    figures: dict[str, dict[str, Any]] = {
        "engine": _bench("engine", "--model", model, "--batch", "16"),
        "trainer": _bench("trainer"),
        "weights": _bench("weights"),
    }
    figures["engine"]["model"] = "SmolLM2-135M"
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "benches.json").write_text(json.dumps(figures, indent=1) + "\n")
    write_page("benches", page(figures))
    weights = figures["weights"]
    return (
        figures["engine"]["ratio_to_raw"] >= ENGINE
        and figures["trainer"]["ratio_to_raw"] >= TRAINER
        and weights["ratio_to_raw"] >= WEIGHTS
        and weights["exposed_to_memcpy"] <= EXPOSED
    )


def _bench(what: str, *options: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(rollart("bench", what, "--json", *options))
    return figures


def page(figures: dict[str, dict[str, Any]]) -> list[str]:
    engine, trainer, weights = (figures[name] for name in ("engine", "trainer", "weights"))
    ratios = [
        ["`rollart-hpc bench engine --model DIR`", "vLLM used directly, SmolLM2-135M, batch 16", _ratio(engine)],
        ["`rollart-hpc bench trainer`", "a bare torch loop on the same packed batch", _ratio(trainer)],
        *(
            ["`rollart-hpc bench weights`", f"the bare collective, {row['collective']}", f"{row['ratio_to_raw']:.2f}"]
            for row in weights["rows"]
        ),
    ]
    exposed = weights["exposed"]
    checksums = ", ".join(f"{row['collective']} {row['checksum_share']:.0%}" for row in weights["rows"])
    return [
        "# Overhead over the bare libraries",
        "",
        "Medians of interleaved pairs on 2 shared CPU cores. `benches.json` has the raw figures. Measured by:",
        "",
        "```",
        "python tests/acceptance/run.py benches",
        "```",
        "",
        *table(["command", "speed relative to", "ratio"], ratios),
        "",
        f"Share of a checksum pass in the time of a transfer through relays: {checksums}. An install of",
        f"{exposed['model_mb']:.0f} MB takes {exposed['install_ms']:.1f} ms, a memcpy of the same",
        f"bytes {exposed['memcpy_ms']:.1f} ms, and the KV rebuild {exposed['rebuild_ms']:.1f} ms. The",
        f"exposed time is {weights['exposed_to_memcpy']:.2f} times memcpy plus rebuild.",
        "",
        "For the controller, see [its page](hub.md).",
    ]


def _ratio(figures: dict[str, Any]) -> str:
    return f"{figures['ratio_to_raw']:.2f}"
