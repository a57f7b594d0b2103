"""The table of modes. Owns which modes exist and what each one does; reads no configuration.

The core (`flow.rules`), the rules between keys (`config.rules`), the help of keys, the pages in docs and the fault
tests all read this table, so adding or changing a mode means editing one row. A new switch of the core needs a field
here, a name in `_SWITCHES` and a field in the core's settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Mode(StrEnum):
    SYNC = "sync"
    SYNC_PLUS = "sync_plus"
    ONE_OFF = "one_off"
    AREAL = "areal"
    ROLLART = "rollart"


_SWITCHES = ("lockstep", "rewards_last", "abort_stale", "install_idle", "barrier")


@dataclass(frozen=True)
class Preset:
    """One row: what a mode does."""

    mode: Mode
    help: str
    alpha: int | None = None  # staleness bound; None: the run's flow.alpha
    lockstep: bool = False  # environments advance only when every trajectory has its answer
    rewards_last: bool = False  # scoring starts only when every trajectory of the batch has ended
    install_idle: bool = False  # an engine installs weights only when it has no unfinished trajectory
    barrier: bool = False  # batches are generated one after another; engines install weights in between
    abort_stale: bool = False  # drop a group as soon as it is too stale; otherwise once it is complete
    streaming: bool = False  # flow.streaming applies
    redundancy: bool = False  # flow.redundancy and flow.redundant_groups apply

    @property
    def bound(self) -> str:
        """The staleness bound as text."""
        return "flow.alpha" if self.alpha is None else str(self.alpha)

    @property
    def summary(self) -> str:
        return f"staleness bound {self.bound}; {self.help}"

    @property
    def switches(self) -> dict[str, bool]:
        """The switches that the core takes unchanged."""
        return {name: getattr(self, name) for name in _SWITCHES}

    @property
    def forced(self) -> dict[str, Any]:
        """Keys below `flow` whose values the mode sets, regardless of the configuration."""
        fixed: dict[str, Any] = {} if self.alpha is None else {"alpha": self.alpha}
        if not self.streaming:
            fixed["streaming"] = False
        if not self.redundancy:
            fixed.update(redundancy=0, redundant_groups=0)
        return fixed


PRESETS: dict[Mode, Preset] = {
    preset.mode: preset
    for preset in (
        Preset(
            Mode.SYNC,
            "environments advance in lockstep; scoring starts when the last trajectory has ended",
            alpha=0,
            lockstep=True,
            rewards_last=True,
            install_idle=True,
        ),
        Preset(
            Mode.SYNC_PLUS,
            "trajectories advance independently; each is scored as soon as it ends",
            alpha=0,
            install_idle=True,
        ),
        Preset(
            Mode.ONE_OFF,
            "a batch is generated while the one before trains; both end at a barrier, where engines install weights",
            alpha=1,
            install_idle=True,
            barrier=True,
        ),
        Preset(
            Mode.AREAL,
            "engines install weights during requests; a group that is too stale is dropped once it is complete",
        ),
        Preset(
            Mode.ROLLART,
            "like areal, but a group is aborted as soon as it is too stale; allows streaming and redundancy",
            abort_stale=True,
            streaming=True,
            redundancy=True,
        ),
    )
}


def preset_of(mode: str) -> Preset:
    return PRESETS[Mode(mode)]


def modes_where(holds: Callable[[Preset], bool]) -> str:
    """The modes for which `holds` is true, as prose: `sync, sync_plus or one_off`."""
    return join_words((preset.mode for preset in PRESETS.values() if holds(preset)), "or")


def fixed_alphas() -> str:
    """The staleness bounds that a mode sets, as prose: `0 in sync and sync_plus, 1 in one_off`."""
    by_alpha: dict[int, list[str]] = {}
    for preset in PRESETS.values():
        if preset.alpha is not None:
            by_alpha.setdefault(preset.alpha, []).append(preset.mode)
    return ", ".join(f"{alpha} in {join_words(modes, 'and')}" for alpha, modes in by_alpha.items())


def join_words(words: Iterable[str], last: str) -> str:
    *head, end = words
    return f"{', '.join(head)} {last} {end}" if head else end


def table() -> list[str]:
    """The modes as a Markdown table, for the pages in docs."""
    rows = ["| mode | staleness bound | what it is |", "|---|---|---|"]
    for preset in PRESETS.values():
        rows.append(f"| `{preset.mode}` | `{preset.bound}` | {preset.help} |")
    return rows
