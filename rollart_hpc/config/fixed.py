"""Which keys of a run can't change once it exists, and why. Owns that list; every other key may change.

Whatever the restore of a checkpoint can deal with may change: groups of another size, other tasks or another mix are
dropped with a reason, and trainers load the checkpoints of other numbers of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollart_hpc.config.schema import RunConfig

Values = dict[str, Any]  # by key path: trainer.lora.rank

_ALWAYS = {
    "name": "its jobs and its directory are found by this name",
    "site": "its jobs and its records belong to that site",
    "model": "the run has its base model",
}
_WITH_A_CHECKPOINT = {
    "seed": "the groups in the checkpoint were seeded with it",
    "trainer.kind": "another trainer can't read the checkpoint",
    "trainer.lora": "the checkpoint holds adapters of that shape",
    "trainer.dtype": "the checkpoint holds tensors of that type",
}


def flat(config: object, path: str = "") -> Values:
    """Every value by its key path; empty sections and lists are values."""
    if not isinstance(config, Mapping) or not config:
        return {path: config}
    found: Values = {}
    for name, value in config.items():
        found |= flat(value, f"{path}.{name}" if path else str(name))
    return found


def find_fixed(old: RunConfig, keys: Mapping[str, Any], *, has_checkpoint: bool) -> Iterator[str]:
    """A line for every changed key that must stay as it is."""
    fixed = _ALWAYS | (_WITH_A_CHECKPOINT if has_checkpoint else {})
    removed = {key.split(".")[1] for key, value in keys.items() if key.startswith("tasks.") and value is None}
    for key, value in keys.items():
        why = next((why for path, why in fixed.items() if key == path or key.startswith(f"{path}.")), None)
        if why:
            yield f"{key}={value}: can't change, because {why}; start a new run for it"
    for task in sorted(removed & set(old.tasks)):
        yield f"tasks.{task}: can't be removed, because the run has counted its trajectories; set tasks.{task}.weight=0"
