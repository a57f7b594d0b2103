"""docs/results/gpu-readiness.md: what a machine without a GPU can show about runs on GPUs. Bytes, no speeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollart_hpc.launch.memory import trainer_parts
from safetensors.torch import load_file

from rollart_hpc.config.load import load
from rollart_hpc.config.model_shape import ModelShape
from rollart_hpc.launch.fit import trainer_size
from tests.acceptance.drive import ROOT, rollart, table, write_page
from tests.processes import server
from tests.trainers.fsdp import gathers, loading
from tests.trainers.fsdp.accounting import peak_bytes
from tests.trainers.fsdp.test_loading import run
from tests.trainers.plain import make_model
from tests.weights.chain import measure

GB = 2**30
QWEN3 = {
    "qwen3-8b-h800-h20": ModelShape(4096, 36, 32, 8, 128, 12288, 151936, is_tied=False, has_qk_norm=True),
    "qwen3-32b-h800-h20": ModelShape(5120, 64, 64, 8, 128, 25600, 151936, is_tied=False, has_qk_norm=True),
}
FEW, MORE = 3, 6  # layers that are accounted for; bytes grow by the same amount with each
RANKS = 4
WIDE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "vocab_size": 16384, "head_dim": 64}
MEGABYTES = 64


def gpu_readiness(keep: Path) -> bool:
    small = make_model(keep / "small")
    (small / "tokenizer.json").write_text("{}")
    memory = [_memory(name, shape, small) for name, shape in QWEN3.items()]
    loaded, gathered = _loading(keep, small), _gathers(keep)
    relays = {count: measure(count, MEGABYTES) for count in (16, 64)}
    tests = json.loads(rollart("selftest", "--json", "--output", str(keep / "selftest.json")))
    lines = [
        "# Ready for GPUs?",
        "",
        "Measured without a GPU, on 2 shared CPU cores. Bytes only: these figures don't depend on the machine's speed.",
        "",
        "```",
        "make acceptance-gpu-readiness",
        "```",
        "",
        *_memory_lines(memory),
        *_loading_lines(loaded),
        *_gather_lines(gathered),
        "## Bytes that the source of a transfer sends",
        "",
        "Counted by the kernel (`tcpi_bytes_acked`) on the source's connections, rendezvous and proofs included.",
        "",
        *table(
            ["targets", "weights", "sent by the source", "ratio"],
            [[str(n), _mb(one.model), _mb(one.root), f"{one.root / one.model:.3f}"] for n, one in relays.items()],
        ),
        "",
        *_selftest_lines(tests),
        "## Not measured",
        "",
        "Everything that needs a GPU. Deltas between versions and adapter-only transfers are not built.",
    ]
    write_page("gpu-readiness", lines)
    fits = all(found["live"] <= 0.8 * 80 * GB for found in memory)
    alike = not any(rank["differ"] for rank in loaded["ranks"])
    grown = all(rank["grown"] <= loaded["limit"] for rank in loaded["ranks"])
    once = all(one.root <= 1.1 * one.model for one in relays.values())
    return fits and alike and grown and once and not any(row["state"] == "failed" for row in tests["rows"])


# --- live bytes --------------------------------------------------------------------------------


def _memory(name: str, shape: ModelShape, directory: Path) -> dict[str, Any]:
    """`directory`: of any model; only the run's plan is read, and the shape is given."""
    size = trainer_size(load(name, [f"model.path={directory}"]))
    assert size is not None
    few, more = (_aside(_peak, replace(shape, layers=layers), size) for layers in (FEW, MORE))
    live = few + (more - few) * (shape.layers - FEW) / (MORE - FEW)
    return {
        "run": name, "ranks": size.ranks, "tokens": size.tokens, "live": live,
        "planned": sum(trainer_parts(shape, size).values()),
    }  # fmt: skip


def _peak(out: str, *arguments: Any) -> None:
    Path(out).write_text(str(peak_bytes(*arguments)))


def _aside(work: Callable[..., None], *arguments: Any) -> int:
    """In a process of its own: a fake process group is that of the whole process."""
    out = ROOT / ".peak"
    process = server.Process(target=work, args=(str(out), *arguments))
    process.start()
    process.join()
    found = int(out.read_text())
    out.unlink()
    return found


def _memory_lines(found: list[dict[str, Any]]) -> list[str]:
    rows = [
        [
            one["run"],
            f"{one['ranks']} ranks, {one['tokens']} tokens",
            f"{one['live'] / GB:.1f} GB",
            f"{one['live'] / (80 * GB):.2f}",
            f"{one['planned'] / GB:.1f} GB",
        ]
        for one in found
    ]
    return [
        "## Live bytes of a trainer rank",
        "",
        "torch's own accounting (FakeTensorMode, MemTracker) of a micro-batch in which every token is sampled, at "
        f"{FEW} and {MORE} layers, continued to all layers; AdamW's state included. A card has 80 GB.",
        "",
        *table(["run", "trainer", "live", "of the card", "estimate of `plan`"], rows),
        "",
    ]


# --- loading -----------------------------------------------------------------------------------


def _loading(keep: Path, small: Path) -> dict[str, Any]:
    large = make_model(keep / "large", **WIDE)
    sizes = [tensor.nbytes for tensor in load_file(large / "model.safetensors").values()]
    place = keep / "loading"
    place.mkdir()
    ranks = run(RANKS, place, loading.main, model=str(large), warm_up=str(small), compares=True)
    limit = 1.2 * sum(sizes) / RANKS + max(sizes)
    return {"ranks": ranks, "total": sum(sizes), "largest": max(sizes), "limit": limit}


def _loading_lines(found: dict[str, Any]) -> list[str]:
    grown = [rank["grown"] for rank in found["ranks"]]
    differ = sum(len(rank["differ"]) for rank in found["ranks"])
    return [
        "## Loading",
        "",
        f"{RANKS} gloo ranks load a model of {_mb(found['total'])} (largest tensor {_mb(found['largest'])}). Peak "
        f"growth of a rank's resident memory: {_mb(min(grown))} to {_mb(max(grown))}; its part is "
        f"{_mb(found['total'] / RANKS)}, the limit (1.2 x part + one tensor) {_mb(found['limit'])}. Tensors that "
        f"differ from what transformers loads: {differ}.",
        "",
    ]


# --- gathers -----------------------------------------------------------------------------------


def _gathers(keep: Path) -> dict[str, Any]:
    place = keep / "gathers"
    place.mkdir()
    found = run(2, place, gathers.main, model=str(make_model(place / "model")), store=str(place / "store"))
    return dict(found[0])


def _gather_lines(found: dict[str, Any]) -> list[str]:
    numbers = found["numbers"]
    rows = [
        ["before", "2", f"{2 * 4 * numbers:,}", "every rank"],
        ["now", f"{found['gathered'] / found['tensors']:g}", f"{found['bytes']:,}", "rank 0"],
    ]
    return [
        "## Gathers of the weights in a step",
        "",
        f"A step of two ranks in bfloat16 with {numbers:,} parameters, counted where torch gathers. Before: once for "
        "the digest, once to publish, in float32 (from the code at that time). Rank 0 alone still writes the version.",
        "",
        *table(["", "times each tensor is gathered", "bytes per rank", "hashes all weights"], rows),
        "",
    ]


# --- selftest ----------------------------------------------------------------------------------


def _selftest_lines(found: dict[str, Any]) -> list[str]:
    rows = [[row["name"], row["state"], row["shows"], row["detail"]] for row in found["rows"]]
    return ["## `rollart-hpc selftest`", "", *table(["check", "result", "shows", "why"], rows), ""]


def _mb(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
