"""Spans from many threads and processes end up on one clock, and in a file that Perfetto opens."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.observe.perfetto import merge
from rollart_hpc.observe.timeline import GAP_S, Span, by_process, read_file, read_run, rows_of
from rollart_hpc.observe.trace import CATEGORIES, Tracer, category
from rollart_hpc.observe.trace_sums import coverage


def span(start: float, end: float, name: str = "decode", process: str = "engine-0") -> Span:
    return Span(process, name, start, end, {}, category(name))


def test_spans_come_back_with_their_arguments(tmp_path: Path) -> None:
    with Tracer(tmp_path / "a.jsonl", "engine-0") as tracer:
        tracer.span("decode", 1.0, 2.5, tokens=np.int64(8), what=Path("x"))
        with tracer.timed("weights.install", version=3) as args:
            args["bytes"] = 10
    first, second = read_file(tmp_path / "a.jsonl")
    assert (first.process, first.name, first.start_s, first.end_s) == ("engine-0", "decode", 1.0, 2.5)
    assert first.args == {"tokens": 8, "what": "x"}
    assert (second.category, second.args) == ("weights", {"version": 3, "bytes": 10})
    assert (tmp_path / "a.jsonl").stat().st_mode & 0o777 == 0o600


def test_nothing_is_lost_between_threads(tmp_path: Path) -> None:
    def work(index: int) -> None:
        for i in range(3000):
            tracer.span("decode", i, i + 1, thread=index)

    with Tracer(tmp_path / "a.jsonl", "engine-0") as tracer:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    spans = list(read_file(tmp_path / "a.jsonl"))
    for index in range(4):
        assert [s.start_s for s in spans if s.args["thread"] == index] == list(range(3000))


def test_spans_reach_the_file_while_the_process_lives(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    tracer = Tracer(path, "engine-0")
    tracer.span("decode", 1.0, 2.0)
    tracer.flush()
    assert len(list(read_file(path))) == 1
    tracer.close()
    tracer.span("decode", 3.0, 4.0)
    tracer.close()
    assert len(list(read_file(path))) == 1


def test_a_tracer_without_a_file_costs_nothing_and_says_nothing() -> None:
    with Tracer(None, "x") as tracer:
        tracer.span("decode", 0, 1)
        tracer.set_offset(1.0)
        tracer.flush()


def test_a_trace_that_can_not_be_written_does_not_stop_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Tracer(tmp_path / "file" / "a.jsonl", "x") as tracer:
        tracer.span("decode", 0, 1)
    if os.path.exists("/dev/full"):
        with Tracer(Path("/dev/full"), "x") as tracer:
            tracer.span("decode", 0, 1)
        assert tracer.num_lost == 1


def write(path: Path, *rows: object, torn: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)


def test_lanes_of_two_nodes_line_up_by_their_offsets(tmp_path: Path) -> None:
    """Node b's clock is 1000 s ahead, and drifts by 1 s at its time 1050."""
    write(tmp_path / "controller.jsonl", {"process": "controller"}, {"at": 0, "offset": 0},
          {"name": "step", "start": 10.0, "end": 20.0})  # fmt: skip
    write(tmp_path / "engine-b.jsonl", {"process": "engine-b"}, {"name": "decode", "start": 1010.0, "end": 1011.0},
          {"at": 1012.0, "offset": -1000.0}, {"at": 1050.0, "offset": -1001.0},
          {"name": "decode", "start": 1049.0, "end": 1052.0}, {"name": "decode", "start": 1060.0, "end": 1061.0},
          torn='{"name": "deco')  # fmt: skip
    starts = [(s.process, s.start_s) for s in read_run([tmp_path])]
    assert starts == [("controller", 0.0), ("engine-b", 0.0), ("engine-b", 39.0), ("engine-b", 49.0)]


def test_a_process_started_again_has_its_own_offsets(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, {"process": "a"}, {"at": 1.0, "offset": 5.0}, {"name": "decode", "start": 2.0, "end": 3.0},
          {"process": "a"}, {"at": 1.0, "offset": 50.0}, {"name": "decode", "start": 2.0, "end": 3.0})  # fmt: skip
    assert [s.start_s for s in read_file(path)] == [7.0, 52.0]


def test_attempts_follow_each_other_and_a_restored_trainer_keeps_its_controller_s_clock(tmp_path: Path) -> None:
    dirs = [tmp_path / f"attempt_{i}" / "trace" for i in (1, 2, 10)]
    write(dirs[0] / "controller.jsonl", {"process": "controller"}, {"name": "step", "start": 100.0, "end": 110.0})
    write(dirs[1] / "trainer-0.jsonl", {"process": "trainer-0"}, {"name": "train", "start": 105.0, "end": 115.0})
    write(dirs[2] / "controller.jsonl", {"process": "controller"}, {"name": "step", "start": 7.0, "end": 8.0})
    spans = read_run(reversed(dirs))
    assert [(s.name, s.start_s) for s in spans] == [("step", 0.0), ("train", 5.0), ("step", 15.0 + GAP_S)]


def test_no_traces(tmp_path: Path) -> None:
    assert read_run([tmp_path]) == []


def test_lanes_come_in_the_order_of_roles() -> None:
    names = ["reward-0", "env-10", "env-9", "engine-compute-0", "other", "controller", "trainer-0"]
    order = by_process(span(0, 1, process=name) for name in names)
    assert list(order) == ["controller", "trainer-0", "engine-compute-0", "env-9", "env-10", "reward-0", "other"]


intervals = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20), st.sampled_from(["decode", "wait"])), max_size=40
)


@given(intervals)
def test_spans_of_a_row_never_cut_each_other(drawn: list[tuple[int, int, str]]) -> None:
    spans = [span(start, start + length, name) for start, length, name in drawn]
    placed = list(rows_of(spans))
    assert sorted(s.start_s for _, s in placed) == sorted(s.start_s for s in spans)
    for i, (row, a) in enumerate(placed):
        for other_row, b in placed[i + 1 :]:
            if row == other_row:
                apart = a.end_s <= b.start_s or b.end_s <= a.start_s
                inside = a.start_s <= b.start_s and b.end_s <= a.end_s
                assert apart or inside


@given(intervals)
def test_coverage_keeps_every_second(drawn: list[tuple[int, int, str]]) -> None:
    spans = [span(start, start + length, name) for start, length, name in drawn]
    covered = coverage(spans, 70.0, num_bins=35)
    for index, name in enumerate(CATEGORIES):
        seconds = sum(s.end_s - s.start_s for s in spans if s.category == name)
        assert covered[index].sum() * 2.0 == pytest.approx(seconds, abs=1e-6)


def test_coverage_of_one_bin() -> None:
    covered = coverage([span(1.0, 2.0), span(1.5, 2.0)], 4.0, num_bins=4)
    assert covered[CATEGORIES.index("decode")].tolist() == pytest.approx([0.0, 1.5, 0.0, 0.0])


def test_merge_writes_a_lane_per_process(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for name in ("engine-0", "trainer-0"):
        with Tracer(trace / f"{name}.jsonl", name) as tracer:
            tracer.span("weights.install", 5.0, 5.5, version=2)
            tracer.span("decode", 5.2, 6.0)
    events = json.loads(merge([trace], tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == ["engine-0", "trainer-0"]
    spans = [e for e in events if e["ph"] == "X" and names[e["pid"]] == "engine-0"]
    assert [(e["name"], e["cat"], e["ts"], e["dur"], e["tid"]) for e in spans] == [
        ("weights.install", "weights", 0.0, 500000.0, 0),
        ("decode", "decode", 200000.0, 800000.0, 1),
    ]
    assert spans[0]["args"] == {"version": 2} and spans[0]["cname"]


def test_a_trace_stays_within_its_budget_and_still_covers_the_run(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.jsonl"
    budget = 40_000
    with Tracer(path, "engine-0", budget) as tracer:
        for i in range(20_000):
            tracer.span("decode", i * 0.1, i * 0.1 + 0.05, tokens=3)
            tracer.span("prefill", i * 0.1 + 0.05, i * 0.1 + 0.08, tokens=7)
            if i % 500 == 0:
                tracer.set_offset(float(i))
                tracer.flush()
                assert path.stat().st_size <= budget
    assert path.stat().st_size <= budget
    spans = list(read_file(path))
    by_name = {name: [s for s in spans if s.name == name] for name in ("decode", "prefill")}
    for name, seconds, tokens in (("decode", 1000.0, 60_000), ("prefill", 600.0, 140_000)):
        assert sum(s.end_s - s.start_s for s in by_name[name]) == pytest.approx(seconds, rel=1e-3), "sums are exact"
        assert sum(s.args["tokens"] for s in by_name[name]) == tokens


def test_a_trajectory_that_one_process_keeps_is_complete_in_all(tmp_path: Path) -> None:
    kept: dict[str, dict[str, int]] = {}
    for name, per_trajectory, budget in (("env-0", 5, 60_000), ("env-1", 2, 60_000), ("reward-0", 1, 20_000)):
        with Tracer(tmp_path / f"{name}.jsonl", name, budget) as tracer:
            for i in range(5000):
                for turn in range(per_trajectory):
                    tracer.span("environment", i + turn * 0.1, i + turn * 0.1 + 0.05, slot=f"a1.g{i // 8}.m{i % 8}")
                if i % 50 == 0:
                    tracer.flush()
        counts: dict[str, int] = {}
        for span in read_file(tmp_path / f"{name}.jsonl"):
            counts[span.args["slot"]] = counts.get(span.args["slot"], 0) + 1
        assert set(counts.values()) == {per_trajectory}, "no trajectory is there in part"
        kept[name] = counts
    fewest = min(kept.values(), key=len)
    assert 20 < len(fewest) < 1000
    assert all(fewest.keys() <= counts.keys() for counts in kept.values())
