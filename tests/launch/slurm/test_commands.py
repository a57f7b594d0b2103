"""How Slurm's commands are called, with small programs in their place: what the real ones do is in tests/slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollart_hpc.launch.slurm.commands import PACE, Pace, Slurm, SlurmError, SlurmSilent, clean_environment, record


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A program on PATH under the name of a command."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def place(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return place


def test_a_table_has_the_names_that_were_asked_for(put) -> None:
    put("squeue", r"printf '12+0\037RUNNING\037a|b c\n12+1\037PENDING\037\n'")
    rows = Slurm().table("squeue", {"id": "%i", "state": "%T", "name": "%j"})
    assert rows == [
        {"id": "12+0", "state": "RUNNING", "name": "a|b c"},
        {"id": "12+1", "state": "PENDING", "name": ""},
    ]


def test_a_failed_command_says_what_it_said(put) -> None:
    put("sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    with pytest.raises(SlurmError, match="invalid partition") as caught:
        Slurm().run("sbatch")
    assert caught.value.code == 1


def test_calls_beyond_a_burst_are_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    slept: list[float] = []
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    monkeypatch.setattr("time.sleep", slept.append)
    pace = Pace(5.0, 10)
    for _ in range(10):
        pace.wait()
    assert slept == []
    for _ in range(3):
        pace.wait()
    assert slept == pytest.approx([0.2, 0.4, 0.6]), "each thread waits for its own turn"
    now_s = 200.0
    for _ in range(10):
        pace.wait()
    assert len(slept) == 3, "after a pause there may be a burst again"


def test_every_call_waits_for_its_turn(put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("squeue", "true")
    waited: list[int] = []
    monkeypatch.setattr(PACE, "wait", lambda: waited.append(1))
    Slurm().table("squeue", {"id": "%i"})
    Slurm().ask("squeue")
    assert len(waited) == 2


def test_a_silent_command_is_given_up(put) -> None:
    put("squeue", "exec sleep 60")
    with pytest.raises(SlurmSilent, match="scontrol ping"):
        Slurm(limit_s=0.2).run("squeue")


def test_without_slurm_the_way_to_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SlurmError, match="devcluster up"):
        Slurm().run("sbatch")


def test_habits_and_surrounding_jobs_do_not_reach_a_command() -> None:
    kept = {"SLURM_CONF": "/etc/slurm.conf", "HOME": "/home/me"}
    foreign = {"SQUEUE_FORMAT": "%i", "SLURM_TIME_FORMAT": "relative", "SBATCH_PARTITION": "x", "SLURM_JOB_ID": "1"}
    assert clean_environment({**kept, **foreign}) == kept


def test_a_record_keeps_values_with_spaces_and_equal_signs() -> None:
    line = "NodeName=n1 OS=Linux 6.1 #1 SMP Gres=gpu:h800:8(S:0) CfgTRES=cpu=16,mem=64000M State=IDLE Comment="
    assert record(line) == {
        "NodeName": "n1",
        "OS": "Linux 6.1 #1 SMP",
        "Gres": "gpu:h800:8(S:0)",
        "CfgTRES": "cpu=16,mem=64000M",
        "State": "IDLE",
        "Comment": "",
    }
