"""The page of reliability is made from whatever its parts have stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance import drive, reliability, soak

SICK = {"aside_s": 70.0, "limit_s": 120.0, "turns_before": 50.0, "turns_after": 49.0, "window_s": 60.0}
FIGURES = {
    "falls": {"falls": [{"tried": "a fall", "before": "it fell", "now": "it stands", "test": "tests/x.py"}]},
    "faults": {
        "seconds": 3600.0, "cpu_seconds": 3500.0, "cores": 2, "broken": [], "kinds": {"kill": 8},
        "worlds": {"core": {"runs": 100_000, "events": 7, "faults": 8}},
    },
    "mutants": {
        "driven": [{"defect": "put back", "world": "core", "seeds": 3, "within": 50}],
        "tested": [{"defect": "put back too", "test": "tests/x.py::test_x", "fails": ["test_x"]}],
    },
    "fuzz": {"messages": 10_000_000, "reached_the_core": 6_000_000},
    "trust": {
        "engines": 16, "slots": 2000, "seconds": 10.0, "ratios": {"turns_per_s": 0.97, "cpu_us_per_turn": 1.02},
        "pairs": [[{"turns_per_s": 9700.0, "cpu_us_per_turn": 51.0}, {"turns_per_s": 1e4, "cpu_us_per_turn": 50.0}]],
    },
    "strangers": {
        "connections": 2000, "soft": 1024, "seconds": 60.0,
        "attacks": [{"hard": 20_000, "turns_before": 9.0, "turns_after": 8.9, "attempt_before": 1, "attempt_after": 1,
                     "step_before": 5, "step_after": 60, "files_before": 40, "files_most": 900}],
    },
    "sick": {"engine": {**SICK, "quarantined": []}, "env": {**SICK, "aside_s": None, "quarantined": ["lake"]}},
    "chaos": {
        "seed": 12, "lasted_s": 600.0, "num_acts": 2, "num_recovered": 2, "longest_recovery_s": 9.0, "steps_before": 1,
        "steps_after": 99, "trajectories": 1000, "problems": [], "refused": {},
        "acts": {"env": {"kill": 1}, "relay": {"cut": 1}},
    },
    "soak": {
        "slots": 1000, "env_workers": 2, "seconds": 3600.0, "steps": 300, "turns": 9000, "trajectories": 8000,
        "processes": {"controller": {"first": 90.0, "last": 91.0, "per_hour": 1.0, "per_step": 0.01, "files_first": 40,
                                     "files_last": 41}},
        "directory": {"all": {"first": 1.0, "last": 2.0, "per_hour": 1.0, "per_step": 0.0}},
    },
}  # fmt: skip


def test_each_part_adds_its_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (drive, reliability):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(reliability, "PARTS", tmp_path / "reliability")
    assert set(FIGURES) == set(reliability.SECTIONS)
    for number, (part, figures) in enumerate(FIGURES.items(), 1):
        reliability.store(part, figures)
        page = (tmp_path / "reliability.md").read_text()
        assert page.count("\n## ") == number
    assert "100,000" in page and "every step was trained exactly once" in page and "98.0%" in page


def test_slopes() -> None:
    assert soak.slope([0.0, 1.0, 2.0], [5.0, 7.0, 9.0]) == pytest.approx(2.0)
    assert soak.slope([1.0, 1.0], [5.0, 7.0]) == 0.0
