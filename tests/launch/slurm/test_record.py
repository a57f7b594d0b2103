"""What a run writes down about its jobs, and what is read from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.budget import seconds
from rollart_hpc.launch.slurm.queue import job_ids, job_names, words
from rollart_hpc.launch.slurm.usage import _given
from rollart_hpc.rundir import RunDir

PARTS = [record.Part(13, "h800", "gpu", ["n1", "n2"], 8)]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run").create()


def began(restart: int, step: int, time_s: float = 0.0) -> record.Began:
    return record.Began(12, restart, step, PARTS, time_s)


def test_records_come_back_and_a_torn_line_is_left_out(run: RunDir):
    submitted = [record.Submitting("rollart-x"), record.Submitted(12, 2, "rollart-x")]
    written = [*submitted, began(0, -1), record.BadNode("n1", "down"), record.Cancelled()]
    for line in written[:3]:
        record.add(run, line)
    with run.jobs.open("a") as file:
        file.write('{"kind": "ended", "job"')
    for line in written[3:]:
        record.add(run, line)
    assert record.read(run) == written
    assert record.bad_hosts(written) == ["n1"] and record.bad_hosts([*written, record.GoodNode("n1")]) == []
    assert job_ids(run) == [12] and job_names(run) == ["rollart-x", "rollart-x-reward"]


def test_cancelled_until_somebody_sets_out_to_submit_it_again():
    lines: list[record.Record] = [record.Submitting("x"), record.Submitted(12, 2, "x"), record.Cancelled()]
    assert record.is_cancelled(lines)
    assert not record.is_cancelled([*lines, record.Submitting("x")])  # its job may begin before its id is known
    assert record.is_cancelled([*lines[:1], record.Cancelled(), *lines[1:2]])  # cancelled while sbatch was at work


def test_starts_that_led_nowhere_are_counted_up_to_the_last_checkpoint():
    lines: list[record.Record] = [began(0, -1), began(1, -1), began(2, 4)]
    assert record.num_fruitless(lines, step=4) == 1
    assert record.num_fruitless(lines[:2], step=-1) == 2
    assert record.num_fruitless(lines, step=6) == 0
    assert record.num_fruitless([*lines, record.Submitting("x")], step=4) == 0


def test_gpu_seconds_of_a_killed_start_are_what_the_others_leave():
    lines: list[record.Record] = [began(0, -1, 100.0), record.Ended(12, 0, "requeued", "", 160.0), began(1, 4, 200.0)]
    assert _given(lines, up_s=90.0) == {"h800": 8 * 60.0 + 8 * 30.0}


def test_time_left_as_slurm_writes_it():
    assert seconds("1-02:03:04") == 93784.0
    assert seconds("1:02:03") == 3723.0
    assert seconds("0:09") == 9.0
    assert seconds("UNLIMITED") == seconds("NOT_SET") == float("inf")


def test_reasons_in_words():
    assert words("None") == ""
    assert words("Resources") == "waiting for free nodes (Resources)"
    assert "QOS" in words("QOSMaxCpuPerUserLimit") and words("QOSMaxCpuPerUserLimit").endswith(
        "(QOSMaxCpuPerUserLimit)"
    )
    assert words("SomethingNew") == "SomethingNew"
