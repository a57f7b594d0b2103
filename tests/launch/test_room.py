"""A machine without room: told once per level, in words, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollart_hpc.processes import room
from rollart_hpc.processes.room import Resource, Room, _group_memory, watch

GB = 10**9


def test_each_level_is_told_once_with_need_users_and_advice() -> None:
    free = [500 * GB]
    disk = Resource(
        "the disk of /runs", lambda: Room(free[0], 1000 * GB), "free some space",
        lambda: (30 * GB, "the next checkpoint"), lambda: "this run uses checkpoints 60.0 GB",
    )  # fmt: skip
    assert list(watch([disk])) == []
    free[0] = 20 * GB
    assert list(watch([disk])) == [
        "warning: the disk of /runs is nearly full: 20.0 GB of 1000.0 GB free; the next checkpoint needs 30.0 GB; "
        "this run uses checkpoints 60.0 GB -> free some space"
    ]
    free[0] = 19 * GB
    assert list(watch([disk])) == []
    free[0] = 0
    (told,) = watch([disk])
    assert "is full: 0 B of 1000.0 GB free" in told and list(watch([disk])) == []
    free[0] = 31 * GB  # hardly enough: it would be told again and again
    assert list(watch([disk])) == []
    free[0] = 100 * GB
    assert list(watch([disk])) == ["the disk of /runs: there is room again, 100.0 GB free"]


def test_two_per_cent_of_a_huge_disk_are_enough() -> None:
    assert list(watch([Resource("disk", lambda: Room(100 * GB, 10**7 * GB), "")])) == []
    assert len(list(watch([Resource("memory", lambda: Room(GB, 64 * GB), "")]))) == 1


def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    inner = tmp_path / "job" / "step"
    inner.mkdir(parents=True)
    (tmp_path / "membership").write_text("0::/job/step\n")
    for place, limit, used in ((inner, "max", 100), (inner.parent, str(1000), 900)):
        (place / "memory.max").write_text(limit + "\n")
        (place / "memory.current").write_text(f"{used}\n")
        (place / "memory.stat").write_text("anon 1\ninactive_file 50\n")
    assert _group_memory(tmp_path, tmp_path / "membership") == Room(150, 1000)


def test_this_machine_can_be_asked(tmp_path: Path) -> None:
    found, held = room.disk(tmp_path), room.memory()
    assert found is not None and found.total > 0 and held is not None and 0 < held.free <= held.total
    assert room.disk(tmp_path / "gone") is None
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "a").write_bytes(bytes(2000))
    assert room.listed(room.used_below(tmp_path)) == "checkpoints 2.0 KB"


@pytest.mark.parametrize("path", ["/dev/shm"])
def test_shared_memory_is_a_disk(path: str) -> None:
    assert room.disk(Path(path)) is not None
