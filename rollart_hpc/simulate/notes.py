"""What a simulation assumes, in words, and how a user changes it. Owns neither the figures nor the simulation."""

from __future__ import annotations

from dataclasses import fields, replace

from rollart_hpc.config.check import nearest
from rollart_hpc.errors import UserError
from rollart_hpc.simulate.build import Case
from rollart_hpc.simulate.workload import Machines

_UNITS = {
    "mfu": "of the trainer's FLOPS are reached",
    "train_fixed_s": "s of a step after its last micro-batch",
    "overhead_s": "s of overhead per iteration of an engine",
    "compute_share": "of the FLOPS are reached in prefill (0: 0.55, or 0.8 of GPUs with few FLOPS per byte)",
    "memory_share": "of the bandwidth is reached in decoding (0: 0.78)",
    "push_gb_s": "GB/s from the trainer's node to the other relays",
    "push_s": "s for a whole push of weights (0: by push_gb_s)",
    "install_gb_s": "GB/s per GPU for an install",
    "install_s": "s for a whole install (0: by install_gb_s)",
    "kv_gb_s": "GB/s for the KV of split turns",
    "hop_s": "s for a message through the controller",
    "engine_mtbf_h": "hours between failures of an engine (0: none)",
    "engine_back_s": "s until a failed engine is back",
    "train_token_s": "s of the trainer per token (0: by FLOPS and mfu)",
}


def assume(machines: Machines, given: list[str]) -> Machines:
    """`given`: key=value."""
    changes: dict[str, float] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if key not in _UNITS:
            raise UserError(f"--assume {text}: there is no figure {key!r}", nearest(key, list(_UNITS)))
        try:
            changes[key] = float(value)
        except ValueError:
            raise UserError(f"--assume {text}: {value!r} is not a number", f"write --assume {key}=1.5") from None
        if not equals or not 0 <= changes[key] < float("inf"):
            raise UserError(f"--assume {text}: not a number of 0 or more", f"write --assume {key}=1.5")
    if not changes.get("mfu", 1.0):
        raise UserError("--assume mfu=0: the trainer would never end", "use more than 0")
    return replace(machines, **changes)  # type: ignore[arg-type]


def told(case: Case) -> list[str]:
    """Where the tasks' figures are from, and every figure of the machines."""
    workload, machines = case.workload, case.workload.machines
    notes = [f"workload {workload.name}: {note}" for note in workload.notes]
    for name in case.config.tasks:
        sources = workload.tasks[name].sources
        if sources:
            notes.append(f"{name}: " + "; ".join(f"{key}: {source}" for key, source in sources.items()))
    measured = set(machines.paces)
    if measured:
        notes.append(f"speed of the engines of {', '.join(sorted(measured))}: measured")
    for each in fields(Machines):
        value = getattr(machines, each.name)
        if each.name in _UNITS and (value or each.name in ("compute_share", "memory_share", "engine_mtbf_h")):
            notes.append(f"{each.name}={value:g}: {_UNITS[each.name]}")
    return notes
