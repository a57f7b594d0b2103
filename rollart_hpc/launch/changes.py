"""Changes to the configuration of a run between two starts. Owns changes.jsonl, and the order in which files change.

`propose` checks everything and writes nothing; a launcher applies the proposal once it knows that the run can start.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from rollart_hpc.config.fixed import find_fixed, flat
from rollart_hpc.config.resolved import read_resolved, read_site, write_resolved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError, UserError, command_line
from rollart_hpc.files import append_line, make_directory, mend, write_atomic
from rollart_hpc.launch.ownership import has_finished, write_ownership
from rollart_hpc.launch.plan import Plan, make_plan
from rollart_hpc.launch.plan_file import read_plan, replace_plan, settle_plan
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState


class ConfigChange(msgspec.Struct, frozen=True):
    """A line of changes.jsonl."""

    step: int  # of the checkpoint from which the changed run continues; 0 = none
    keys: dict[str, tuple[Any, Any]]  # key path -> value before and after; None: the key did not exist
    time_s: float = msgspec.field(default_factory=time.time)

    def as_text(self) -> str:
        listed = ", ".join(f"{key} {_shown(old)} -> {_shown(new)}" for key, (old, new) in self.keys.items())
        return f"changed after step {self.step}: {listed}"


@dataclass(frozen=True)
class Proposal:
    """A run with the configuration and plan of its next start."""

    run: RunDir
    config: RunConfig
    plan: Plan
    change: ConfigChange
    warnings: list[str]

    def apply(self) -> None:
        """A crash in between leaves no plan, and then the next start makes one from the configuration."""
        run = self.run
        if self.change.keys:
            earlier = run.earlier_config(len(read_changes(run)) + 1)
            make_directory(earlier.parent)
            write_atomic(earlier, run.config.read_bytes())
            with replace_plan(run, self.plan):
                write_resolved(run.config, self.config)
            mend(run.changes)
            append_line(run.changes, msgspec.json.encode(self.change).decode(), sync=True)
        settle_plan(run)  # a run directory of an earlier version has none
        if has_finished(run):
            reason = f"extended to {self.config.steps} steps"
            write_ownership(run, run.last_attempt(), (), RunState.DRAINED, reason)


def propose(run: RunDir, overrides: Sequence[str]) -> Proposal:
    """Raises if a key must not change, or nothing is left to do."""
    old, new, warnings = read_resolved(run.config), read_resolved(run.config), list[str]()
    if overrides:
        from rollart_hpc.config.load import change  # OmegaConf, which those who only read changes don't need

        new, warnings = change(old, overrides, f"resume {run.path}")
    keys = differences(old, new)
    newest = run.newest_checkpoint()
    step = newest.step if newest else 0
    changed = {key: after for key, (_, after) in keys.items()}
    problems = list(find_fixed(old, changed, has_checkpoint=newest is not None))
    if "steps" in keys and new.steps < step:
        problems.append(f"steps={new.steps}: the run has already done {step}; set steps to at least {step}")
    if problems:
        raise ConfigError(f"resume {run.path}", problems)
    if has_finished(run) and new.steps <= old.steps:
        further = command_line("resume", run.path, f"steps={2 * max(1, old.steps)}")
        raise UserError(f"{run.path} has finished all {old.steps} steps", f"to train further: {further}")
    if "steps" in keys and new.trainer.schedule != "constant":
        warnings.append(f"trainer.schedule is {new.trainer.schedule}: the learning rate now follows {new.steps} steps")
    site = read_site(run.site) if run.site.exists() else None
    plan = make_plan(new, site) if keys else read_plan(run)
    return Proposal(run, new, plan, ConfigChange(step, keys), warnings)


def read_changes(run: RunDir) -> list[ConfigChange]:
    """Oldest first. Skips a line that a crash tore."""
    found: list[ConfigChange] = []
    try:
        lines = run.changes.read_bytes().splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=ConfigChange))
        except msgspec.DecodeError:
            continue
    return found


def differences(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    before, after = flat(asdict(old)), flat(asdict(new))
    keys = [*before, *(key for key in after if key not in before)]
    pairs = ((key, (before.get(key), after.get(key))) for key in keys)
    return {key: pair for key, pair in pairs if pair[0] != pair[1]}


def _shown(value: object) -> str:
    return "none" if value is None else str(value)
