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


def packed(step: int, **changes) -> Line:
    groups = [step * 3 + i for i in (2, 0, 1)]
    names = [f"a{1 + group % 2}.g{group}.m{member}" for group in groups for member in (5, 1)]
    made = Line(2, step, step + 1, f"w{step}", f"w{step + 1}", groups, names, [step, step, max(0, step - 1)] * 2)
    return msgspec.structs.replace(made, **changes)


def trained(one: Line) -> tuple[set[int], set[tuple[str, int]]]:
    return set(one.groups), set(zip(one.trajectories, one.start_versions, strict=True))


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"trajectories": ["x"] * 6},
        {"start_versions": [9] * 6},
        {"groups": [1]},
        {"trajectories": ["a1.g6.m300"] * 6},
    ],
)
def test_a_packed_line_says_what_the_plain_one_said(tmp_path, odd):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(ledger.encode(packed(2, **odd)) + b"\n" + msgspec.json.encode(packed(3)) + b"\n")
    first, second = ledger.read(path)
    assert trained(first) == trained(packed(2, **odd)) and trained(second) == trained(packed(3))
    assert (b"packed" in path.read_bytes()) == (not odd)


def test_a_large_step_takes_less_than_a_tenth():
    names = [f"a1.g{group}.m{member}" for group in range(1000, 1256) for member in range(16)]
    one = Line(1, 9, 10, "w" * 32, "v" * 32, list(range(1000, 1256)), names, [9] * len(names))
    assert len(ledger.encode(one)) * 10 < len(msgspec.json.encode(one))


def test_a_ledger_of_any_size_is_checked_like_a_small_one(tmp_path):
    path = tmp_path / "ledger.jsonl"
    entries = [packed(0), packed(1), packed(2), ledger.Restored(3, 1, "checkpoint 3 is damaged"), packed(1), packed(2)]
    for changed in ({}, {"trajectories": packed(0).trajectories, "groups": packed(0).groups}, {"parent_digest": "x"}):
        written = [*entries, packed(3, **changed)]
        path.write_bytes(b"".join(ledger.encode(entry) + b"\n" for entry in written))
        assert list(map(type, ledger.entries(path))) == list(map(type, written))
        found = ledger.check(path, group_size=2, alpha=1)
        assert found == ledger.problems(ledger.entries(path), group_size=2, alpha=1)
        assert bool(found) == bool(changed)


def test_a_restore_voids_what_came_after_it():
    assert [one.version for one in ledger.surviving([packed(0), packed(1), packed(2), ledger.Restored(2, 1)])] == [1]
