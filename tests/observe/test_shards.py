from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from rollart_hpc.observe import shards
from rollart_hpc.observe.shards import ShardWriter, lines, make_room

BUDGET = 1 << 20


def writer(directory: Path, name: str = "w", kind: str = "plays", **changes: int) -> ShardWriter:
    return ShardWriter(directory, kind, name, **{"attempt": 1, "budget": BUDGET} | changes)


def everything(directory: Path, kind: str = "") -> list[bytes]:
    notes: list[str] = []
    found = [line for path in shards.shards(directory, kind) for line in lines(path, notes.append)]
    assert not notes
    return found


def test_lines_come_back_while_the_writer_lives(tmp_path: Path) -> None:
    one = writer(tmp_path / "new")
    assert one.wait_s is None and everything(tmp_path / "new") == []
    for number in range(3):
        one.add(b'{"n":%d}' % number, version=number)
    assert one.wait_s == 0.0, "the first lines need not wait"
    one.flush_if_due()
    one.add(b"{}", version=9)
    one.flush_if_due()  # too early
    assert one.wait_s and everything(tmp_path / "new") == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
    one.flush()
    (path,) = shards.shards(tmp_path / "new")
    assert path.name == "a0001.v0000000.plays.w.0001.jsonl.gz" and path.stat().st_mode & 0o777 == 0o600
    assert gzip.decompress(path.read_bytes()).count(b"\n") == 4


def test_shards_are_in_the_order_of_policy_versions(tmp_path: Path) -> None:
    for attempt, version, kind in ((2, 3, "plays"), (1, 12, "plays"), (1, 7, "advantages"), (1, -1, "plays")):
        one = writer(tmp_path, kind=kind, attempt=attempt)
        one.add(b"%d.%d" % (attempt, version), version)
        one.flush()
    (tmp_path / "a0001.v0000000.plays.w.jsonl.gz").write_text("another name: not ours")
    assert everything(tmp_path) == [b"1.-1", b"1.7", b"1.12", b"2.3"]
    assert everything(tmp_path, "plays") == [b"1.-1", b"1.12", b"2.3"]


def test_the_oldest_go_first_and_the_budget_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "FLUSH_BYTES", 1)  # every line is a member
    one, other = writer(tmp_path, "one", budget=8_000), writer(tmp_path, "other", "advantages", budget=8_000)
    for version in range(600):
        (one if version % 2 else other).add(b"%d" % version * 100, version)
    left = shards.shards(tmp_path)
    assert 6_000 < sum(path.stat().st_size for path in left) <= 8_300
    kept = sorted(int(line[:3]) for line in everything(tmp_path))
    assert kept[-1] == 599 and kept[0] > 0
    assert len(kept) > 0.9 * (599 - kept[0]), "nothing newer than what is kept was removed, but for open shards"


def test_a_shard_that_another_writer_removed_begins_again(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.add(b"old", 1)
    one.flush()
    make_room(tmp_path, 0)
    assert not shards.shards(tmp_path)
    one.add(b"new", 2)
    one.flush()
    assert everything(tmp_path) == [b"new"]


@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda data: data + b"\0garbage", lambda data: data[5:]])
def test_damage_ends_a_shard_with_a_note(tmp_path: Path, damage) -> None:
    one = writer(tmp_path)
    for line in (b"first", b"second"):
        one.add(line, 0)
        one.flush()
    (path,) = shards.shards(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    notes: list[str] = []
    found = list(lines(path, notes.append))
    assert found in ([], [b"first"], [b"first", b"second"]) and "damaged" in notes[0] and path.name in notes[0]


def test_a_part_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MEMBER_BYTES", 1000)
    one = writer(tmp_path)
    for line in (b"short", b"x" * 100_000, b"short"):
        one.add(line, 0)
        one.flush()
    notes: list[str] = []
    assert list(lines(shards.shards(tmp_path)[0], notes.append)) == [b"short"] and "larger than" in notes[0]


def test_reading_on_from_where_one_stopped(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.add(b"first", 0)
    one.flush()
    (path,) = shards.shards(tmp_path)
    (first,) = shards.members(path, pytest.fail)
    assert not list(shards.members(path, pytest.fail, first.end))
    one.add(b"second", 0)
    one.flush()
    (second,) = shards.members(path, pytest.fail, first.end)
    assert (second.at, second.lines) == (first.end, [b"second"]) and second.end == path.stat().st_size


def test_a_shard_that_is_gone(tmp_path: Path) -> None:
    assert list(lines(tmp_path / "a0001.v0000000.plays.w.0001.jsonl.gz", pytest.fail)) == []


def test_what_can_not_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    one = writer(tmp_path / "file")
    for _ in range(3):
        one.add(b"line", 0)
        one.flush()
    assert caplog.text.count("no more plays are recorded") == 1 and one.wait_s is None
