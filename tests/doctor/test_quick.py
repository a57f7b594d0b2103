"""What is known without a job, with small programs in place of Slurm's: the real ones are in tests/slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollart_hpc.config.load import load_site
from rollart_hpc.doctor.quick import COMMANDS, need_readiness, readiness
from rollart_hpc.errors import SiteError
from rollart_hpc.launch.slurm.commands import Slurm


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with commands that do nothing, and a munge that works."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", str(place))
    for name in (*COMMANDS, "munge", "unmunge"):
        put(place, name, "exit 0")
    put(place, "scontrol", "echo 'SchedulerType = sched/backfill'")
    return place


def put(place: Path, name: str, script: str) -> None:
    (place / name).write_text(f"#!/bin/sh\n{script}\n")
    (place / name).chmod(0o755)


def failures(tmp_path: Path) -> dict[str, str]:
    found = readiness(load_site("dev"), tmp_path / "not yet" / "there", Slurm(limit_s=5))
    return {one.check: f"{one.what} {one.fix}" for one in found if one.level == "fail"}


def test_a_good_login_node_has_no_failures_and_nothing_is_made(bin: Path, tmp_path: Path) -> None:
    assert failures(tmp_path) == {}
    assert not (tmp_path / "not yet").exists()


def test_missing_commands_end_it(bin: Path, tmp_path: Path) -> None:
    (bin / "sbatch").unlink()
    assert list(failures(tmp_path)) == ["commands"]
    with pytest.raises(SiteError, match="login node"):
        need_readiness(load_site("dev"), tmp_path, Slurm())


def test_a_silent_controller_is_no_failure_of_munge(bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which socket munge has is in slurm.conf, which slurmctld no longer tells."""
    put(bin, "scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    put(bin, "munge", '[ "$2" = "--socket=/run/own.sock" ] || { echo no socket >&2; exit 6; }')
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    assert set(failures(tmp_path)) == {"slurmctld"}
    (tmp_path / "slurm.conf").write_text("AuthInfo=socket=/run/own.sock,cred_expire=5\n")
    assert set(failures(tmp_path)) == {"slurmctld"}
    (tmp_path / "slurm.conf").write_text("AuthInfo=socket=/run/other.sock\n")
    assert set(failures(tmp_path)) == {"slurmctld", "munge"}


def test_a_silent_controller_and_a_dead_munge_are_both_said(
    bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    (tmp_path / "slurm.conf").write_text("ClusterName=here\n")
    put(bin, "scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    put(bin, "munge", "echo 'munge: Failed to access socket' >&2; exit 6")
    found = failures(tmp_path)
    assert set(found) == {"munge", "slurmctld"}
    assert "scontrol ping" in found["slurmctld"] and "administrators" in found["munge"]


def test_het_jobs_need_the_backfill_scheduler(bin: Path, tmp_path: Path) -> None:
    put(bin, "scontrol", "echo 'SchedulerType = sched/builtin'")
    assert "serves" in failures(tmp_path)["backfill"]


def test_a_full_disk_is_found_by_writing(bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr("os.fsync", full)
    assert "quota" in failures(tmp_path)["disk"]
