"""What a rank holds while and after it loads a model, as the main function of a process of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rollart_hpc.trainers import attention
from rollart_hpc.trainers.fsdp import model as models
from rollart_hpc.trainers.fsdp.loading import blank
from rollart_hpc.trainers.world import open_world
from tests.trainers.plain import make_config


def whole(directory: Path) -> Any:
    """As transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation=attention.register(), local_files_only=True
    ).eval()


def memory(kind: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most since `forget_peak`."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def forget_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def main(job: dict[str, Any], rank: int) -> None:
    torch.set_num_threads(1)
    world = open_world(rank, job["ranks"], "cpu", Path(job["rendezvous"]))
    config, directory = make_config(**job.get("config", {})), Path(job["model"])
    models.load_trained(Path(job["warm_up"]), world, config)  # code that is imported on the first use
    world.sum([0.0])
    before = forget_peak()
    models._try_out = lambda *_: world.sum([0.0])  # gathers blocks: no part of loading
    model = models.load_trained(directory, world, config)
    found: dict[str, Any] = {"grown": memory("VmHWM") - before, "left_on_meta": _on_meta(model)}
    if job.get("compares"):
        models.blank = whole
        found["differ"] = _differences(model, models.load_trained(directory, world, config))
        models.blank = blank
    Path(f"{job['out']}.{rank}.json").write_text(json.dumps(found))
    world.close()


def _on_meta(model: torch.nn.Module) -> list[str]:
    return [name for name, tensor in [*model.named_parameters(), *model.named_buffers()] if tensor.is_meta]


def _differences(model: Any, other: Any) -> list[str]:
    pairs = [
        (dict(model.named_parameters(remove_duplicate=False)), dict(other.named_parameters(remove_duplicate=False))),
        (dict(model.named_buffers()), dict(other.named_buffers())),
    ]
    found = []
    for ours, theirs in pairs:
        found += sorted(ours.keys() ^ theirs.keys())
        for name in ours.keys() & theirs.keys():
            a, b = models.lora.full_tensor(ours[name]), models.lora.full_tensor(theirs[name])
            if a.dtype != b.dtype or not torch.equal(a, b):
                found.append(name)
            if ours[name].requires_grad != theirs[name].requires_grad:
                found.append(f"{name}: requires_grad")
    return found
