"""The report says what happened, needs nothing but itself, and exists however little a run left behind."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rollart_hpc.errors import SiteError
from rollart_hpc.observe.charts import Series, Stack, bars, line_chart, make_axis, number, round_ticks, thin
from rollart_hpc.observe.report import write_report
from rollart_hpc.observe.sections import duration
from rollart_hpc.observe.status import Status, TaskStatus, read_status, write_status
from rollart_hpc.vocabulary import RunState

from .fake_run import write_fake_run


class Balanced(HTMLParser):
    """Counts what is open; raises on a tag that closes another one."""

    VOID = ("meta", "line", "circle", "rect", "path", "br", "!doctype")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(path: Path) -> tuple[str, str]:
    """(html, visible text); the html must be well-formed and load nothing."""
    html = path.read_text()
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert not re.search(r"""(src|href)\s*=|url\(|@import|https?://""", html)
    assert "nan" not in re.sub(r"<style>.*?</style>", "", html, flags=re.S).lower().split()
    return html, " ".join(parser.text)


def test_report_of_a_whole_run(tmp_path: Path) -> None:
    write_fake_run(tmp_path, steps=40)
    html, text = read(write_report(tmp_path))
    for expected in (
        *("quickstart", "finished", "40 / 40", "0.09 → 0.88", "frozenlake", "countdown", "surplus", "engine_lost"),
        "compute: up to 49% of its KV in use",
        *("engine-compute-0", "99.1%", "Staleness of trained", "grad_norm", "worker lost", "1 bad_key", "43%", "±"),
    ):
        assert expected in text, expected
    assert "engine-compute-0 lost: exited with code -9" in html
    assert "<script>: &#x27;not run&#x27;" not in html and "&lt;script&gt;" in html
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o600


def test_report_stays_small_for_a_long_run(tmp_path: Path) -> None:
    write_fake_run(tmp_path, steps=200)
    html, _ = read(write_report(tmp_path))
    assert len(html) < 1_500_000


def test_report_of_a_run_that_left_nothing(tmp_path: Path) -> None:
    _, text = read(write_report(tmp_path, state=RunState.KILLED))
    assert "killed" in text and "no trace was written" in text and "nothing was trained" in text


def test_report_of_a_run_that_died_before_its_first_step(tmp_path: Path) -> None:
    write_fake_run(tmp_path, steps=1)
    (tmp_path / "metrics.jsonl").write_text('{"kind":"event","time_s":0.5,"what":"worker_joined"}\n{"kind":"st')
    (tmp_path / "status.json").write_text('{"state": "failed", "reason": "no engine joined", "tasks": {"maze": {}}}')
    for path in (tmp_path / "attempts").rglob("*.jsonl"):
        path.write_bytes(path.read_bytes()[:-7])
    _, text = read(write_report(tmp_path))
    assert "failed" in text and "no engine joined" in text and "maze" in text


def test_report_of_a_run_with_a_damaged_status(tmp_path: Path) -> None:
    write_fake_run(tmp_path, steps=3)
    (tmp_path / "status.json").write_text("{")
    _, text = read(write_report(tmp_path))
    assert "is damaged" in text and "frozenlake" in text


def test_steps_without_optional_figures(tmp_path: Path) -> None:
    lines = [
        {"kind": "step", "step": i, "version": i + 1, "reward": {"maze": None}, "metrics": {"x": None}}
        for i in range(3)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    read(write_report(tmp_path))


def test_status_round_trip(tmp_path: Path) -> None:
    status = Status(state="running", step=3, tasks={"maze": TaskStatus(score_first=0.1, pool_share={"compute": 1.0})})
    write_status(tmp_path / "status.json", status)
    assert read_status(tmp_path / "status.json") == status
    assert read_status(tmp_path / "none.json") is None
    assert json.loads((tmp_path / "status.json").read_text())["wait"] == {"get_batch_share": 0.0}


def test_damaged_status_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"step": "three"}')
    with pytest.raises(SiteError, match=r"status\.json is damaged"):
        read_status(tmp_path / "status.json")


def test_axis_and_ticks() -> None:
    assert round_ticks(0.0, 1.0, 5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert round_ticks(3.0, 97.0, 5) == [20.0, 40.0, 60.0, 80.0]
    axis = make_axis([5.0], 0, 100)
    assert axis(5.0) == 50.0
    assert make_axis([], 0, 100)(0.5) == 50.0


def test_numbers_and_durations() -> None:
    assert [number(v) for v in (0, 0.0412, 12.345, 4281.3, 840_000, 2_500_000)] == [
        "0",
        "0.0412",
        "12.3",
        "4,281",
        "840k",
        "2.5M",
    ]
    assert [duration(v) for v in (0.5, 47, 452, 11100)] == ["0.50 s", "47 s", "7 min 32 s", "3 h 5 min"]


def test_thinning_keeps_the_range_of_x_and_the_mean() -> None:
    points = [(float(i), float(i % 2)) for i in range(1000)]
    assert len(thin(points, 100)) == 100
    assert {y for _, y in thin(points, 100)} == {0.5}


def test_a_bar_of_nothing_beside_others() -> None:
    stacks = [Stack("some", [("a", 1.0, "c1"), ("b", 3.0, "c2")]), Stack("none", [("a", 0.0, "c1"), ("b", 0.0, "c2")])]
    assert "some: b 75.0%" in (chart := bars(stacks, share=True)) and "none" in chart
    assert "nothing was recorded" in bars(stacks[1:], share=True)


def test_a_chart_of_one_point_and_of_none() -> None:
    assert "circle" in line_chart([Series("a", "c1", [(1.0, 2.0)])], x_title="x")
    assert "nothing was recorded" in line_chart([Series("a", "c1", [])], x_title="x")
    assert "nothing was recorded" in line_chart([Series("a", "c1", [(1.0, float("nan"))])], x_title="x")
