"""The limits of what environments print, without processes or clocks."""

from __future__ import annotations

import logging

import pytest

from rollart_hpc.envs.output import BURST_BYTES, BYTES_PER_S, LINE_BYTES, TOTAL_BYTES, Lines


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def test_lines_in_pieces_long_lines_and_odd_characters(told: pytest.LogCaptureFixture) -> None:
    lines = Lines("t", 0.0)
    for piece in (b"one li", b"ne\nnext\n", b"\x1b[31mred\xff\n", b"y" * 3000, b"y" * 3000 + b"\nafter\nlast"):
        lines.feed(piece, 0.0)
    lines.end(0.0)
    expected = ["t: one line", "t: next", "t:  [31mred\ufffd", f"t: {'y' * LINE_BYTES} [cut]", "t: after", "t: last"]
    assert told.messages == expected


def test_a_flood_is_dropped_with_one_note_and_counted_when_it_is_over(told: pytest.LogCaptureFixture) -> None:
    lines = Lines("t", 0.0)
    for _ in range(100):
        lines.feed(b"x" * 99 + b"\n" + b"x" * 1899 + b"\n", 0.0)
    assert len(told.messages) < 2 + 2 * BURST_BYTES // 1100
    assert "dropping its output" in told.messages[-1]
    told.clear()
    lines.feed(b"too early\n", 1.0)
    assert told.messages == []
    lines.feed(b"again\n", BURST_BYTES / BYTES_PER_S)
    assert "were dropped" in told.messages[0] and told.messages[1:] == ["t: again"]


def test_a_task_that_prints_all_the_time_is_silenced_for_good(told: pytest.LogCaptureFixture) -> None:
    lines, seconds = Lines("t", 0.0), 2 * TOTAL_BYTES // BURST_BYTES
    for second in range(seconds):
        lines.feed((b"x" * 999 + b"\n") * 60, 60.0 * second)
    assert sum(len(message) - 3 for message in told.messages if message.startswith("t: xx")) <= TOTAL_BYTES
    assert sum("dropping its output" in message for message in told.messages) == 1
