"""What submission does when the network fails, with commands that behave as told. A real Slurm has the other tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rollart_hpc.config.load import load, load_site
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.launch.launcher import launcher_of_run, run_status
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm import submit as submitting
from rollart_hpc.launch.slurm.commands import SEPARATOR, Slurm
from rollart_hpc.launch.slurm.submit import Request, submit, submit_again
from rollart_hpc.rundir import RunDir

TIMED_OUT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(submitting, "PAUSES_S", (0.0, 0.0))
    config, site = load("quickstart"), load_site("dev")
    return Request(RunDir(tmp_path / "a run"), config, site, make_plan(config, site))


@pytest.fixture
def command(tmp_path: Path, request_: Request):
    def put(name: str, body: str) -> None:
        """`body` finds the number of its call in $n."""
        path = tmp_path / "bin" / name
        calls = f"'{tmp_path}/{name}.calls'"
        count = f"n=$(cat {calls} 2>/dev/null || echo 0); n=$((n + 1)); echo $n > {calls}"
        path.write_text(f"#!/bin/bash\n{count}\n{body}\n")
        path.chmod(0o755)

    return put


def calls(tmp_path: Path, name: str) -> int:
    path = tmp_path / f"{name}.calls"
    return int(path.read_text()) if path.exists() else 0


def test_the_job_is_recorded_with_its_script(request_: Request, command, tmp_path: Path) -> None:
    command("sbatch", f"[ \"$2\" = '{request_.run.script}' ] && echo '12;cluster'")
    assert submit(request_, Slurm(), print) == 12
    assert request_.run.script.read_text() == request_.script
    before, line = record.read(request_.run)
    assert isinstance(before, record.Submitting) and isinstance(line, record.Submitted)
    assert before.name == request_.name
    assert (line.job, line.num_components, line.name) == (12, 3, request_.name)


def test_after_a_timeout_the_job_in_the_queue_is_the_run_s(request_: Request, command, tmp_path: Path) -> None:
    command("sbatch", TIMED_OUT)
    command("squeue", "printf '12+0\\n12+1\\n12+2\\n'")
    assert submit(request_, Slurm(), print) == 12
    assert calls(tmp_path, "sbatch") == 1


def test_a_job_that_ended_before_is_not_taken_for_the_new_one(request_: Request, command, tmp_path: Path) -> None:
    command("sbatch", f"[ $n != 2 ] && echo $((11 + n)) && exit; {TIMED_OUT}")
    command("squeue", "echo 12")
    assert submit(request_, Slurm(), print) == 12
    assert submit_again(request_, Slurm(), print) == 14
    assert calls(tmp_path, "sbatch") == 3


def test_a_run_with_a_live_job_is_not_submitted_by_another_path(request_: Request, command, tmp_path: Path) -> None:
    command("sbatch", "echo 12")
    submit(request_, Slurm(), print)
    (tmp_path / "link").symlink_to(request_.run.path)
    again = replace(request_, run=RunDir(tmp_path / "link"))
    assert again.name != request_.name
    for by in (("12", "renamed"), ("99", request_.name)):
        command("squeue", f"printf '{SEPARATOR.join((by[0] + '+1', by[1], 'RUNNING'))}\\n'")
        assert submitting._busy(again, Slurm()) == [by[0]]
    command("squeue", f"printf '{SEPARATOR.join(('12', request_.name, 'CANCELLED'))}\\n'")
    assert submitting._busy(again, Slurm()) == []


def test_after_a_refusal_the_run_still_belongs_to_the_cluster(request_: Request, command) -> None:
    command("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid qos' >&2; exit 1")
    with pytest.raises(UserError):
        submit(request_, Slurm(), print)
    status = run_status(request_.run)
    assert (
        launcher_of_run(request_.run).is_cluster and status.state == "pending" and "rollart-hpc resume" in status.reason
    )


def test_after_a_timeout_without_a_job_it_is_submitted_again(request_: Request, command, tmp_path: Path) -> None:
    command("sbatch", f"[ $n = 2 ] && echo 13 && exit; {TIMED_OUT}")
    command("squeue", "")
    assert submit(request_, Slurm(), print) == 13
    assert (calls(tmp_path, "sbatch"), calls(tmp_path, "squeue")) == (2, 1)


def test_nothing_is_submitted_again_while_nobody_can_tell(request_: Request, command, tmp_path: Path) -> None:
    command("sbatch", TIMED_OUT)
    command("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(SiteError):
        submit(request_, Slurm(), print)
    assert calls(tmp_path, "sbatch") == 1


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("Invalid account or account/partition combination specified", "job.account"),
        ("Invalid qos specification", "job.qos"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "job.time_minutes"),
        ("Requested node configuration is not available", "site check"),
        ("User's group not permitted to use this partition", "ask for access"),
    ],
)
def test_a_refusal_says_what_to_do(said: str, fix: str, request_: Request, command, tmp_path: Path) -> None:
    command("sbatch", f'echo "sbatch: error: Batch job submission failed: {said}" >&2; exit 1')
    with pytest.raises(UserError) as caught:
        submit(request_, Slurm(), print)
    assert said in caught.value.what and fix in caught.value.fix
    assert calls(tmp_path, "sbatch") == 1


def test_the_bad_option_is_named_not_the_help_text(request_: Request, command) -> None:
    command("sbatch", "echo \"sbatch: unrecognized option '--foo'\" >&2; echo 'Try \"sbatch --help\"' >&2; exit 255")
    with pytest.raises(UserError, match="unrecognized option '--foo'") as caught:
        submit(request_, Slurm(), print)
    assert "job.sbatch" in caught.value.fix


NOT_AVAILABLE = "echo 'allocation failure: Requested node configuration is not available' >&2; exit 1"


def nodes(*states: str) -> str:
    lines = [SEPARATOR.join((part, f"{part}n{i}", state, "fan")) for part in ("cpu", "h800", "h20")
             for i, state in enumerate(states if part == "h20" else ("idle", "idle"))]  # fmt: skip
    return "printf '%s\\n' " + " ".join(f"'{line}'" for line in lines)


def test_what_would_only_wait_is_a_warning(request_: Request, command) -> None:
    """sbatch --test-only has the same words for drained nodes and for a request that no node can fulfil."""
    command("sbatch", NOT_AVAILABLE)
    command("sinfo", nodes("drained", "drained*"))
    said = list[str]()
    assert submitting.test_script(request_.script, request_.plan, Slurm(), said.append) == ""
    (warning,) = said
    assert (
        "will wait in the queue: 2 of 2 nodes of partition h20 can't be used (drained: fan, drained*: fan)" in warning
    )
    command("sinfo", nodes("idle", "mixed"))
    with pytest.raises(UserError, match="node configuration is not available"):
        submitting.test_script(request_.script, request_.plan, Slurm(), print)


def test_a_run_that_is_cancelled_while_it_is_submitted_leaves_no_job(
    request_: Request, command, tmp_path: Path
) -> None:
    jobs = request_.run.jobs
    command("sbatch", f"echo '{{\"kind\":\"cancelled\"}}' >> '{jobs}'; echo 12")
    command("scancel", f'echo "$@" > "{tmp_path}/ended"')
    with pytest.raises(UserError, match="was cancelled while it was being submitted"):
        submit(request_, Slurm(), print)
    assert (tmp_path / "ended").read_text() == "12\n"
