"""Waiting for the doctor's job, with a squeue that behaves as told."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollart_hpc.doctor import submit
from rollart_hpc.launch.slurm.commands import Slurm

SILENT = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(submit, "_POLL_S", 0.01)

    def answers(*bodies: str) -> None:
        """One after the other; the last for ever."""
        count = f"n=$(cat '{tmp_path}/n' 2>/dev/null || echo 1); echo $((n + 1)) > '{tmp_path}/n'\n"
        cases = "".join(f"{i}) {body} ;;\n" for i, body in enumerate(bodies[:-1], 1))
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{count}case $n in\n{cases}*) {bodies[-1]} ;;\nesac\n")
        (tmp_path / "squeue").chmod(0o755)

    return answers


def row(state: str, reason: str = "None") -> str:
    return rf"printf '{state}\037{reason}\037cpu\n'"


def test_a_squeue_that_fails_says_nothing_about_the_job(squeue) -> None:
    squeue(row("PENDING"), SILENT, row("RUNNING"), SILENT, row("COMPLETED"), "echo asked too often >&2; exit 7")
    said: list[str] = []
    assert submit._wait(Slurm(), "12", 60, said.append) is None
    assert said == ["job 12 is running"]


def test_a_job_that_slurm_has_forgotten_is_over(squeue) -> None:
    squeue(FORGOTTEN)
    assert submit._wait(Slurm(), "12", 60, print) is None


@pytest.mark.parametrize(("answer", "why"), [(row("PENDING", "Resources"), "cpu: Resources"), (SILENT, "contact")])
def test_a_job_that_does_not_start_comes_with_its_reason(squeue, answer: str, why: str) -> None:
    squeue(answer)
    found = submit._wait(Slurm(), "12", 0.05, print)
    assert found is not None and found.level == "fail" and why in found.what
