"""A report of a long run: the same figures, in the memory of a short one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollart_hpc.observe import history, metrics
from rollart_hpc.observe.trace_sums import MAX_LANES, Busy, read_trace

from .fake_run import write_fake_run

# VmHWM, because ru_maxrss begins with the memory of the process that forked this one.
PEAK = """
import sys
from pathlib import Path
from rollart_hpc.observe import perfetto
from rollart_hpc.observe.report import write_report
run = Path(sys.argv[1])
write_report(run)
perfetto.merge([run / "attempts" / "attempt_1" / "trace"], run / "trace.json")
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def write(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "st')
    return path


def step(version: int, attempt: int = 1) -> dict:
    return {
        "kind": "step",
        "version": version,
        "attempt": attempt,
        "tokens": 10,
        "step_s": 2.0,
        "kv_used": {"a": version},
    }


def test_what_survives_is_the_same_as_when_all_lines_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "_BLOCK_BYTES", 64)
    lines = []
    for version in (1, 2, 3, 4, 3, 4, 5, 2, 3, 4):
        lines += [step(version, len(lines)), {"kind": "validation", "version": version, "task": "t", "n": len(lines)}]
        lines += [{"kind": "event", "what": "worker_lost", "n": len(lines)}]
    path = write(tmp_path / "metrics.jsonl", lines)
    found = history.read_history(path)
    assert found.steps == metrics.surviving_steps(lines)
    assert found.validations == metrics.surviving_validations(lines)
    assert (found.num_steps, found.tokens, found.seconds, found.kv_peaks) == (4, 40, 8.0, {"a": 4})
    assert found.num_events == len(found.losses) == 10 and found.events[0]["n"] < found.events[-1]["n"]
    assert list(history.backwards(path)) == lines[::-1]
    assert history.read_history(tmp_path / "none") == history.History()


def test_a_long_run_keeps_its_ends_and_its_sums(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "MAX_STEPS", 100)
    monkeypatch.setattr(history, "MAX_VALIDATIONS", 50)
    lines = []
    for version in range(1, 1001):
        lines.append(step(version))
        lines.append({"kind": "validation", "version": version, "task": "t", "each": {"seed": [1]}})
    found = history.read_history(write(tmp_path / "metrics.jsonl", lines))
    assert found.num_steps == 1000 and found.tokens == 10_000 and len(found.steps) <= 101
    assert [found.steps[0]["version"], found.steps[-1]["version"]] == [1, 1000]
    assert len(found.validations) <= 51
    assert [v["version"] for v in found.validations if "each" in v] == [1, 1000], "for the paired difference"


def test_the_time_that_spans_cover():
    import numpy as np

    busy = Busy()
    for start in range(0, 100_000, 1000):
        starts = np.arange(start, start + 1000, dtype=float)
        busy.add(starts, starts + 0.5)
        busy.add(starts + 0.25, starts + 0.75)
    assert busy.seconds() == (pytest.approx(75_000), pytest.approx(24_999.75, abs=1))


def test_of_many_processes_some_of_each_role_are_shown(tmp_path):
    for role, count in (("controller", 1), ("engine", 300), ("env", 50)):
        for number in range(count):
            name = role if role == "controller" else f"{role}-{number}"
            row = {"name": "decode", "start": 1.0, "end": 2.0}
            (tmp_path / f"{name}.jsonl").write_text(f"{json.dumps({'process': name})}\n{json.dumps(row)}\n")
    trace = read_trace([tmp_path])
    roles = {name.partition("-")[0] for name in trace.lanes}
    assert trace.num_processes == 351 and len(trace.lanes) <= MAX_LANES and roles == {"controller", "engine", "env"}


@pytest.mark.slow
def test_the_memory_of_a_report_does_not_grow_with_the_run(tmp_path):
    peaks = []
    for steps in (400, 4000):
        write_fake_run(tmp_path / str(steps), steps)
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(tmp_path / str(steps))], check=True, capture_output=True, text=True
        )
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.5 * peaks[0], peaks
