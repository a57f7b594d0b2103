"""metrics.jsonl survives crashes of its writer, TensorBoard's files are what TensorBoard reads, no torch is loaded."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollart_hpc.errors import SiteError
from rollart_hpc.observe.metrics import Board, MetricsLog, of_kind, read, surviving_steps, surviving_validations
from rollart_hpc.observe.tensorboard import record


def test_lines_come_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.step({"step": 0, "version": 1, "reward": {"maze": np.float32(0.5)}})
    log.validation({"version": 1, "task": "maze", "success": 0.25})
    log.event("worker_lost", time_s=1.5, name="engine-0", detail="killed")
    log.close()
    lines = read(path)
    assert [line["kind"] for line in lines] == ["step", "validation", "event"]
    assert lines[0]["reward"] == {"maze": 0.5}
    assert of_kind(lines, "event")[0]["name"] == "engine-0"
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_file_means_no_lines(tmp_path: Path) -> None:
    assert read(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("torn", [b'{"kind":"st', b"\xff\xfe", b"[1]"])
def test_a_torn_last_line_is_left_out_and_the_next_writer_does_not_continue_it(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind":"step","version":1}\n' + torn)
    assert len(read(path)) == 1
    log = MetricsLog(path)
    log.step({"version": 2})
    log.close()
    assert [line["version"] for line in read(path)] == [1, 2]


def test_not_a_number_becomes_null(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.step({"version": 1, "loss": math.nan})
    log.close()
    assert read(tmp_path / "metrics.jsonl")[0]["loss"] is None


def test_a_full_disk_is_a_site_error() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("NOT TESTED: no /dev/full here")
    log = MetricsLog(Path("/dev/full"))
    with pytest.raises(SiteError, match="No space left"):
        log.step({"version": 1})


def test_rolled_back_steps_do_not_survive() -> None:
    versions = [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 4)]
    lines = [{"kind": "step", "attempt": a, "version": v} for a, v in versions]
    assert [(s["attempt"], s["version"]) for s in surviving_steps(lines)] == [(1, 1), (2, 2), (2, 3), (2, 4)]


def test_tensorboard_record_has_known_checksums() -> None:
    """crc32c of b"abc" is a published value; the mask is TensorFlow's."""
    data = record(b"abc")
    assert data[:8] == struct.pack("<Q", 3)
    assert data[12:15] == b"abc"
    crc_of_abc = 0x364B3FB7  # crc32c("abc")
    masked = ((crc_of_abc >> 15 | crc_of_abc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert struct.unpack("<I", data[15:]) == (masked,)


def fields(data: bytes) -> dict[int, list[Any]]:
    """A protobuf message by field number: integers, else the bytes; apart from the code under test."""
    found: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(data):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            found.setdefault(number, []).append(varint())
            continue
        length = varint() if kind == 2 else {1: 8, 5: 4}[kind]
        assert at + length <= len(data)
        found.setdefault(number, []).append(data[at : at + length])
        at += length
    return found


def test_board_writes_what_tensorboard_reads(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.step({"step": 299, "version": 300, "wait_s": 1.5, "reward": {"maze": 0.5}, "metrics": {"loss": -2.0}})
    board.validation({"version": 300, "task": "maze", "success": 0.25, "versions": [1, 2]})
    board.close()
    (path,) = tmp_path.iterdir()
    data, events = path.read_bytes(), []
    while data:
        length = struct.unpack("<Q", data[:8])[0]
        events.append(fields(data[12 : 12 + length]))
        data = data[16 + length :]
    assert events[0][3] == [b"brain.Event:2"]
    values = [fields(value) for event in events[1:] for (summary,) in [event[5]] for value in fields(summary)[1]]
    found = {value[1][0].decode(): struct.unpack("<f", value[2][0])[0] for value in values}
    assert found == {
        "train/wait_s": 1.5,
        "train/reward/maze": 0.5,
        "train/metrics/loss": -2.0,
        "validation/maze/success": 0.25,
    }
    assert {event[2][0] for event in events[1:]} == {300}


def test_validations_of_versions_that_were_rolled_back_do_not_count() -> None:
    def step(version: int) -> dict[str, object]:
        return {"kind": "step", "version": version}

    def validation(version: int, success: float, task: str = "maze") -> dict[str, object]:
        return {"kind": "validation", "version": version, "task": task, "success": success}

    lines = [validation(0, 0.1), step(1), step(2), validation(2, 0.2), step(3), validation(3, 0.3)]
    assert [line["success"] for line in surviving_validations(lines)] == [0.1, 0.2, 0.3]
    lines += [validation(2, 0.25), validation(2, 0.9, "lake"), step(3)]  # restored at version 2, validated once more
    assert [line["success"] for line in surviving_validations(lines)] == [0.1, 0.25, 0.9]
    lines += [validation(3, 0.4), step(1)]
    assert [line["success"] for line in surviving_validations(lines)] == [0.1]


def test_a_board_that_can_not_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file")
    board = Board(tmp_path / "tensorboard")
    board.step({"version": 1, "loss": 1.0})
    board.close()


def test_nothing_here_loads_torch(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from rollart_hpc.observe import metrics, report, status, trace;"
        f"metrics.Board(pathlib.Path({str(tmp_path)!r})).step({{'version': 1, 'loss': 1.0}});"
        "assert not {'torch', 'tensorboard', 'matplotlib'} & set(sys.modules)"
    )
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": root})
