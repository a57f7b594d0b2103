"""Exactly-once, recomputed from the ledger: it accepts honest chains and finds every kind of cheating."""

from __future__ import annotations

import msgspec
import pytest

from rollart_hpc.observe import ledger
from rollart_hpc.observe.ledger import Line


def line(version: int, attempt: int = 1, **changes) -> Line:
    step = version - 1
    names = [f"a{attempt}.g{step}.m{i}" for i in range(2)]
    made = Line(attempt, step, version, f"w{step}", f"w{version}", [step], names, [step, max(step - 1, 0)])
    return msgspec.structs.replace(made, **changes)


def problems(*lines: Line) -> list[str]:
    return ledger.problems(list(lines), group_size=2, alpha=1)


def test_an_honest_chain_has_no_problems():
    assert not problems(line(1), line(2), line(3))


def test_rolled_back_steps_are_void_and_their_trajectories_may_train_again():
    void = line(2, trajectories=["x", "y"], digest="gone")
    again = line(2, attempt=2, trajectories=["x", "y"])
    assert not problems(line(1), void, line(3, parent_digest="gone", digest="gone too"), again, line(3, attempt=2))
    assert [one.attempt for one in ledger.surviving([line(1), void, again])] == [1, 2]


@pytest.mark.parametrize(
    ("cheat", "said"),
    [
        ({"trajectories": ["a1.g0.m0", "a1.g1.m1"]}, "trained 2 times"),
        ({"parent_digest": "other"}, "its parent is not"),
        ({"start_versions": [1, -1]}, "started under version -1"),
        ({"trajectories": ["x"], "start_versions": [1]}, "1 trajectories in 1 groups"),
    ],
)
def test_cheating_is_found(cheat, said):
    assert any(said in problem for problem in problems(line(1), line(2, **cheat)))


def test_a_missing_step_is_found():
    assert any("version 3 follows version 1" in problem for problem in problems(line(1), line(3)))


def test_a_torn_line_is_left_out(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(msgspec.json.encode(line(1)) + b"\n" + msgspec.json.encode(line(2))[:40])
    assert [one.version for one in ledger.read(path)] == [1]
