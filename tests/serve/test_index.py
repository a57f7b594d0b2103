from __future__ import annotations

from pathlib import Path

from rollart_hpc.observe import ledger
from rollart_hpc.observe.shards import make_room
from rollart_hpc.observe.transcripts import Where
from rollart_hpc.serve.index import PlayIndex, lengths
from tests.serve.scene import make_run, recorder, write_play


def test_it_grows_with_the_shards_and_reads_nothing_twice(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    index = PlayIndex(run)
    index.refresh()
    assert len(index) == 9 and index.tasks() == ["countdown", "frozenlake"]
    plays = recorder(run, "reward-1-x")
    for version in (7, 8):
        write_play(plays, f"a1.g{version}.m0", 0.5, version)
        plays.close()
        index.refresh()
    assert len(index) == 11 and [play.step for play in index.find(Where(group=8))] == [None]
    assert [play.trajectory for play in index.find_recent(2)] == ["a1.g8.m0", "a1.g7.m0"]


def test_steps_follow_the_ledger(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    index = PlayIndex(run)
    index.refresh()
    assert len(index.find(Where(steps=(1, 1), purpose="train"))) == 4
    with run.ledger.open("ab") as file:
        file.write(ledger.encode(ledger.Restored(2, 1)) + b"\n")
    index.refresh()
    assert not index.find(Where(steps=(1, 1), purpose="train"))


def test_what_was_removed_is_forgotten(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    index = PlayIndex(run)
    index.refresh()
    play = index.load("a1.g1.m1")
    assert (
        play is not None and play.step == 1 and [each.reward for each in index.siblings(play)] == [0.0, 1.0, 0.5, 0.75]
    )
    make_room(run.transcripts, 0)
    assert index.load("a1.g1.m1") is None
    index.refresh()
    assert len(index) == 0 and index.load("a1.g1.m1") is None


def test_lengths(tmp_path: Path) -> None:
    index = PlayIndex(make_run(tmp_path / "run", steps=2))
    index.refresh()
    assert list(lengths(index.find(Where()))) == [("countdown", 1, 6.0, 0.0), ("frozenlake", 8, 6.0, 0.125)]
