"""The jobs of a run as Slurm sees them. Owns the query, its back-off and the texts for Slurm's reasons.

A heterogeneous job has one row per component. Slurm forgets a job some minutes after its end; the run's own records
(`record`) stay.
"""

from __future__ import annotations

import getpass
import re
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import suppress

import msgspec

from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError
from rollart_hpc.launch.slurm.script import elastic_name
from rollart_hpc.launch.status import JobRow
from rollart_hpc.rundir import RunDir

LIMIT_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 15.0
# States of jobs, as Slurm prints them. Slurm has more, and newer versions may add some.
PENDING, RUNNING = "PENDING", "RUNNING"
WAITING = frozenset({PENDING, "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING", "RESV_DEL_HOLD"})
LIVE = frozenset({PENDING, "CONFIGURING", RUNNING})
ENDED_WELL = frozenset({"COMPLETED", "CANCELLED"})
OVER = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
})  # fmt: skip
FIELDS = {
    "job": "%i", "partition": "%P", "state": "%T", "reason": "%r", "start": "%S", "left": "%L", "nodes": "%N",
}  # fmt: skip
WORDS = {
    "Resources": "waiting for free nodes",
    "Priority": "other jobs have a higher priority",
    "BeginTime": "was requeued and starts soon",
    "Dependency": "waiting for another job",
    "DependencyNeverSatisfied": "depends on a job that failed, so it will never start",
    "JobHeldUser": "is held: release it with scontrol release",
    "JobHeldAdmin": "is held by an administrator",
    "JobArrayTaskLimit": "other jobs of the array run first",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionNodeLimit": "asks for more nodes than the partition allows",
    "PartitionTimeLimit": "asks for more time than the partition allows",
    "Licenses": "waiting for a licence",
    "Reservation": "waiting for its reservation",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
}
_BEGINNINGS = {
    "ReqNodeNotAvail": "waiting for nodes that are down, drained or reserved",
    "Nodes required for job are DOWN": "waiting for nodes that are down, drained or reserved",
    "QOS": "a limit of its QOS has been reached",
    "Assoc": "a limit of its account has been reached",
}


class Queue:
    """Queries at most every few seconds, and less often while nothing changes or Slurm does not answer."""

    def __init__(self, run: RunDir, slurm: Slurm | None = None) -> None:
        self._run, self._slurm = run, slurm or Slurm(limit_s=LIMIT_S)
        self._rows: list[JobRow] | None = None
        self._pause_s, self._next_s = FIRST_PAUSE_S, 0.0

    def rows(self) -> list[JobRow] | None:
        """Rows of the newest job, by component, then those of other jobs for the run that are not over.

        Empty: Slurm no longer knows them. None: Slurm does not answer.
        """
        if time.monotonic() < self._next_s:
            return self._rows
        found = self._ask()
        self._pause_s = FIRST_PAUSE_S if found != self._rows else min(LONGEST_PAUSE_S, 1.5 * self._pause_s)
        self._rows, self._next_s = found, time.monotonic() + self._pause_s
        return found

    def _ask(self) -> list[JobRow] | None:
        jobs = job_ids(self._run)
        if not jobs:
            return []
        if record.satellites(record.read(self._run)):
            rows = all_rows(self._slurm)
            return None if rows is None else rows_of(self._run, rows)
        try:
            found = self._slurm.table("squeue", FIELDS, f"--jobs={jobs[-1]}", "--states=all")
        except SlurmError as error:
            return [] if "invalid job id" in error.stderr.lower() else None
        return sorted((_row(fields) for fields in found), key=lambda row: row.job)


def job_ids(run: RunDir) -> list[int]:
    """Leaders of all jobs of the run, oldest first."""
    lines = (line for line in record.read(run) if isinstance(line, (record.Submitted, record.Began)))
    return list(dict.fromkeys(line.job for line in lines))


def own_job_ids(run: RunDir) -> list[int]:
    """Without the user's own jobs, in which `debug` was run."""
    guests = {line.job for line in record.read(run) if isinstance(line, record.Began) and line.held_by == "user"}
    return [job_id for job_id in job_ids(run) if job_id not in guests]


def job_names(run: RunDir) -> list[str]:
    """Names of all jobs of the run, also of elastic workers: one may be in the queue before it is recorded."""
    records = record.read(run)
    names = dict.fromkeys(line.name for line in records if isinstance(line, record.Submitting))
    return [*names, *(elastic_name(name) for name in names), *record.satellite_names(records)]


def live_jobs(slurm: Slurm, ids: Iterable[int], names: Collection[str]) -> list[str]:
    """Leaders of your jobs with one of these ids or names that are not over. One query."""
    return list(live_states(slurm, ids, names))


def live_states(slurm: Slurm, ids: Iterable[int], names: Collection[str]) -> dict[str, dict[str, str]]:
    """The same with the state of each component: {"12": {"12+0": "RUNNING", "12+1": "RUNNING"}}."""
    fields = {"job": "%i", "name": "%j", "state": "%T"}
    rows = slurm.table("squeue", fields, f"--user={getpass.getuser()}", "--states=all")
    known = {str(job_id) for job_id in ids}
    live: dict[str, dict[str, str]] = {}
    for row in rows:
        leader = leader_of(row["job"])
        if row["state"] not in OVER and (leader in known or row["name"] in names):
            live.setdefault(leader, {})[row["job"]] = row["state"]
    return {leader: dict(sorted(states.items())) for leader, states in live.items()}


def all_rows(slurm: Slurm) -> dict[str, list[JobRow]] | None:
    """All your jobs by leader, with one query. None: Slurm does not answer."""
    try:
        found = slurm.table("squeue", FIELDS, f"--user={getpass.getuser()}", "--states=all")
    except SlurmError:
        return None
    rows: dict[str, list[JobRow]] = {}
    for fields in sorted(found, key=lambda fields: fields["job"]):
        rows.setdefault(leader_of(fields["job"]), []).append(_row(fields))
    return rows


def rows_of(run: RunDir, rows: dict[str, list[JobRow]]) -> list[JobRow]:
    """Of all your jobs, those of this run: the newest one, and others that hold nodes for it."""
    own = [row for job in job_ids(run)[-1:] for row in rows.get(str(job), [])]
    units = record.satellites(record.read(run))
    others = [msgspec.structs.replace(row, unit=unit) for job, unit in units.items() for row in rows.get(str(job), [])]
    return [*own, *(row for row in others if not is_over(row))]


def leader_of(job: str) -> str:
    """12 for 12, 12+1 and 12_3."""
    return re.split(r"[+_]", job)[0]


def is_over(row: JobRow) -> bool:
    return row.state in OVER


def end_as_cancelled(slurm: Slurm, leader: int) -> None:
    """For a job that its user cancelled: the exit code of its supervisor would be a failure to Slurm.

    Never for a job that only looks cancelled: after the loss of a node Slurm is about to requeue it.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(SlurmError):
        slurm.ask("scancel", str(leader))


def words(reason: str) -> str:
    """Slurm's reason for a pending job as text. An unknown reason is returned unchanged."""
    if reason in ("", "None"):
        return ""
    begun = next((text for start, text in _BEGINNINGS.items() if reason.startswith(start)), "")
    text = WORDS.get(reason, begun)
    return f"{text} ({reason})" if text else reason


def _row(fields: dict[str, str]) -> JobRow:
    known = {name: "" if value in ("N/A", "(null)") else value for name, value in fields.items()}
    waits = known["state"] == PENDING
    return msgspec.convert({**known, "reason": words(known["reason"]) if waits else ""}, JobRow)
