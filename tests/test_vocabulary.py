"""The words of a run: what is written stays readable, and every word says what it means."""

from __future__ import annotations

import json
import re
from enum import Enum
from pathlib import Path

import msgspec
import pytest

from rollart_hpc.flow.state import Tally
from rollart_hpc.observe.status import Status, read_status, write_status
from rollart_hpc.vocabulary import DropReason, EventKind, ExitCode, LineKind, ProcessState, RunState

PACKAGE = Path(__file__).resolve().parents[1] / "rollart_hpc"
WORDS = (RunState, ProcessState, DropReason, LineKind, EventKind)


@pytest.mark.parametrize("vocabulary", [ExitCode, *WORDS])
def test_every_word_says_what_it_means(vocabulary: type[Enum]) -> None:
    meanings = [getattr(word, "meaning", "") for word in vocabulary]
    assert all(meanings) and len(set(meanings)) == len(meanings)


def test_a_run_that_is_over_has_an_exit_code() -> None:
    over = {state: state.exit_code for state in RunState if state.is_over}
    assert over == {"finished": 0, "drained": 5, "cancelled": 5, "failed": 3, "killed": 3}
    assert [state for state in over if not state.can_resume] == ["finished"]


def test_events_that_end_a_run_are_states_that_it_ends_in() -> None:
    ends = [RunState(kind.value) for kind in EventKind if kind.ends_run]
    assert len(ends) == 3 and all(state.is_over for state in ends)


def test_words_are_written_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_status(path, Status(state=RunState.KILLED, dropped={DropReason.SURPLUS: 1}))
    found = json.loads(path.read_text())
    assert (found["state"], found["dropped"]) == ("killed", {"surplus": 1})
    status = read_status(path)
    assert status is not None and status.state is RunState.KILLED


def test_a_checkpoint_of_another_version_may_have_other_reasons() -> None:
    tally = Tally()
    tally.dropped.update({DropReason.SURPLUS: 1})
    tally.restore({"dropped": {"surplus": 2, "stale": 3, "gone": 1}})
    assert tally.dropped == {DropReason.SURPLUS: 3, DropReason.UNKNOWN_REASON: 4}
    again = json.loads(msgspec.json.encode(tally.snapshot()))
    assert again["dropped"] == {"surplus": 3, "unknown_reason": 4}


def test_nobody_spells_a_reason_or_a_state_by_hand() -> None:
    """Words that also mean something else somewhere are left out."""
    elsewhere = {"failed", "running", "unknown", "killed", "cancelled", "superseded", "checkpoint"}
    words = {word.value for vocabulary in (RunState, DropReason, EventKind) for word in vocabulary} - elsewhere
    quoted = re.compile(rf"\"({'|'.join(sorted(words))})\"")
    found = [
        f"{path.relative_to(PACKAGE)}: {match[0]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "vocabulary.py"
        for match in quoted.finditer(path.read_text())
    ]
    assert found == []
