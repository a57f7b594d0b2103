"""Runs under faults that the invariants must survive, in virtual time; `make acceptance-faults` does an hour."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults import faulty, spoiling

EXAMPLES = int(os.environ.get("ROLLART_FAULT_RUNS", "2000"))
# What went wrong in these: a bad node joined first; redundant groups were stale from the start; late ticks; old tokens;
# answers about older weights; a late answer before a direct transfer.
CORE_SEEDS = (65, 1002917, 1004018, 1005425, 1007688, 1013552, 2030205, 2030522)
CONTROLLER_SEEDS = (140, 2001189, 1000273, 2002676)


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.parametrize("first", range(0, EXAMPLES // 2, 250))
def test_the_core(first: int) -> None:
    for seed in range(first, first + 250):
        _say(seed, lambda seed=seed: faulty.play(seed))


def test_the_core_where_it_failed_before() -> None:
    for seed in CORE_SEEDS:
        _say(seed, lambda seed=seed: faulty.play(seed))


def test_the_controller(tmp_path: Path) -> None:
    for seed in (*range(EXAMPLES // 20), *CONTROLLER_SEEDS):
        _say(seed, lambda seed=seed: spoiling.controlled(tmp_path / "run", seed))


def _say(seed: int, play) -> None:
    try:
        play()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
