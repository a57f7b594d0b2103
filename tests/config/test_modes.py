"""The table of modes, and that whoever speaks of modes means the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rollart_hpc.config.modes import PRESETS, Mode, fixed_alphas, modes_where, preset_of, table
from rollart_hpc.config.reference import all_keys
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.flow.rules import FlowRules, rules_of

ROOT = Path(__file__).resolve().parents[2]


def policy(mode: str, estimator: str = "grpo") -> FlowRules:
    """Of a run that asks for everything a mode may refuse."""
    config = RunConfig(mode=mode)
    flow = replace(config.flow, alpha=3, streaming=True, redundancy=2, redundant_groups=1)
    return rules_of(replace(config, flow=flow, algorithm=replace(config.algorithm, estimator=estimator)))


def test_every_mode_has_a_row() -> None:
    assert list(PRESETS) == list(Mode)
    assert all(preset.mode is mode and preset.help for mode, preset in PRESETS.items())


@pytest.mark.parametrize(
    ("mode", "alpha", "switches"),
    [
        ("sync", 0, {"lockstep", "rewards_last", "install_idle"}),
        ("sync_plus", 0, {"install_idle"}),
        ("one_off", 1, {"install_idle", "barrier"}),
        ("areal", 3, set()),
        ("rollart", 3, {"abort_stale", "streaming"}),
    ],
)
def test_what_the_core_is_told(mode: str, alpha: int, switches: set[str]) -> None:
    found = policy(mode)
    names = ("lockstep", "rewards_last", "install_idle", "barrier", "abort_stale", "streaming")
    assert (found.alpha, {name for name in names if getattr(found, name)}) == (alpha, switches)
    assert (found.redundancy, found.redundant_groups) == ((2, 1) if mode == "rollart" else (0, 0))


def test_an_estimator_over_the_batch_never_streams() -> None:
    assert not any(policy(mode, "reinforce").streaming for mode in Mode)


def test_every_switch_is_a_field_of_the_core() -> None:
    assert set(preset_of("sync").switches) | set(preset_of("sync").forced) <= set(FlowRules.__dataclass_fields__)


def test_words_for_help_and_errors() -> None:
    assert fixed_alphas() == "0 in sync and sync_plus, 1 in one_off"
    assert modes_where(lambda preset: not preset.install_idle) == "areal or rollart"
    assert modes_where(lambda preset: preset.alpha is not None) == "sync, sync_plus or one_off"


def test_help_reads_the_table() -> None:
    keys = {key.path: key for key in all_keys()}
    assert keys["mode"].choices == tuple(Mode) and "lockstep" in keys["mode"].meanings["sync"]
    assert fixed_alphas() in keys["flow.alpha"].help


def test_pages_that_list_modes_list_all_of_them() -> None:
    listed = ", ".join(f"`{mode}`" for mode in Mode)
    for page in ("README.md", "ARCHITECTURE.md"):
        assert listed in (ROOT / page).read_text(), page
    assert "\n".join(table()) in (ROOT / "docs" / "runs.md").read_text(), "run `make docs`"
