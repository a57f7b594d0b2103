"""A few thousand mutated messages. `tests/acceptance/fuzz.py` sends millions."""

from __future__ import annotations

from pathlib import Path

from tests.roles.fuzz import fuzz

NUMBER = 5000


def test_no_mutated_message_raises_in_the_controller(tmp_path: Path) -> None:
    found = fuzz(tmp_path, NUMBER, seed=1)
    assert not found.stray, found.stray
    assert found.sent == NUMBER
    assert found.reached >= NUMBER / 2, f"only {found.reached} of {NUMBER} became events: {found.refused}"
    assert found.steps > 0, "the honest workers trained nothing meanwhile"


def test_a_seed_always_gives_the_same_messages_and_findings(tmp_path: Path) -> None:
    assert fuzz(tmp_path / "a", 1000, seed=2) == fuzz(tmp_path / "b", 1000, seed=2)
