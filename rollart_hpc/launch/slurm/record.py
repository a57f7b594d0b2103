"""jobs.jsonl: the history of a run's jobs. Owns the format of that file; never calls Slurm.

A line is added before and after a job is submitted, when it starts, ends or is cancelled, and when a node turns out to
be bad or good again, or is avoided. A job that was killed has no line for its end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal, Union

import msgspec

from rollart_hpc.files import append_line, mend
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState


class Line(msgspec.Struct, frozen=True, tag_field="kind"):
    pass


class Submitting(Line, frozen=True, tag="submitting"):
    """From now on there may be a job of this name, even if its id is never recorded."""

    name: str
    time_s: float = msgspec.field(default_factory=time.time)


class Submitted(Line, frozen=True, tag="submitted"):
    job: int  # of the leader
    num_components: int
    name: str
    time_s: float = msgspec.field(default_factory=time.time)


class ElasticJob(Line, frozen=True, tag="elastic_job"):
    """The job of one elastic worker."""

    job: int
    name: str
    time_s: float = msgspec.field(default_factory=time.time)


class Satellite(Line, frozen=True, tag="satellite"):
    """What happened to a job that holds only nodes for the run (`launch.plan.Component.job`)."""

    what: Literal["submitting", "submitted", "began", "ended"]  # began: an agent is there, so its nodes are held
    unit: str  # the component
    name: str  # of the job
    hardware: str = ""
    num_gpus: int = 0  # of all its nodes
    job: int = 0  # unknown while it is being submitted
    reason: str = ""
    time_s: float = msgspec.field(default_factory=time.time)


class Part(msgspec.Struct, frozen=True):
    """A component as Slurm allocated it."""

    job: int
    hardware: str  # class of the site
    partition: str
    hosts: list[str]
    num_gpus: int  # of all its nodes


HeldBy = Literal["script", "prompt", "user"]


class Began(Line, frozen=True, tag="began"):
    job: int
    restart: int  # how many times Slurm had restarted it
    from_step: int  # newest committed checkpoint; -1 = base model
    parts: list[Part]
    time_s: float = msgspec.field(default_factory=time.time)
    held_by: HeldBy = (
        "script"  # what releases the nodes when it ends: the batch script, debug's prompt, or the user's own job
    )


class Ended(Line, frozen=True, tag="ended"):
    job: int
    restart: int
    state: RunState
    reason: str = ""
    time_s: float = msgspec.field(default_factory=time.time)


class Cancelled(Line, frozen=True, tag="cancelled"):
    """The user ended the run: its jobs do nothing until it is submitted again."""

    time_s: float = msgspec.field(default_factory=time.time)


class BadNode(Line, frozen=True, tag="bad_node"):
    """A node of this run is down or drained: Slurm does not use it."""

    host: str
    reason: str
    time_s: float = msgspec.field(default_factory=time.time)


class GoodNode(Line, frozen=True, tag="good_node"):
    """A bad node was repaired."""

    host: str
    time_s: float = msgspec.field(default_factory=time.time)


class AvoidedNodes(Line, frozen=True, tag="avoided_nodes"):
    """All nodes that the jobs of this run exclude from now on, although Slurm considers them fine."""

    hosts: list[str]
    time_s: float = msgspec.field(default_factory=time.time)


Record = Union[Submitting, Submitted, ElasticJob, Satellite, Began, Ended, Cancelled, BadNode, GoodNode, AvoidedNodes]
_decode = msgspec.json.Decoder(Record).decode


def add(run: RunDir, record: Record) -> None:
    mend(run.jobs)
    append_line(run.jobs, msgspec.json.encode(record).decode(), sync=True)


def read(run: RunDir) -> list[Record]:
    """Oldest first. Skips a line that a crash tore."""
    records: list[Record] = []
    try:
        lines = run.jobs.read_bytes().splitlines()
    except FileNotFoundError:
        return records
    for line in lines:
        try:
            records.append(_decode(line))
        except msgspec.DecodeError:
            continue
    return records


def is_cancelled(records: Iterable[Record]) -> bool:
    """Was it cancelled after its last submission? `Submitting` counts: a job may start before its id is recorded."""
    words = [record for record in records if isinstance(record, (Submitting, Cancelled))]
    return bool(words) and isinstance(words[-1], Cancelled)


def is_guest(records: Iterable[Record]) -> bool:
    """Is its newest start in the user's own job, which exists before and after the run?"""
    words = [record for record in records if isinstance(record, (Submitting, Began))]
    return bool(words) and isinstance(words[-1], Began) and words[-1].held_by == "user"


def satellites(records: Iterable[Record]) -> dict[int, str]:
    """All jobs that held only nodes for the run, by id: the unit of each."""
    lines = (record for record in records if isinstance(record, Satellite))
    return {line.job: line.unit for line in lines if line.job}


def satellite_names(records: Iterable[Record]) -> list[str]:
    return list(dict.fromkeys(record.name for record in records if isinstance(record, Satellite)))


def bad_hosts(records: Iterable[Record]) -> list[str]:
    """Nodes that were bad at the last check."""
    bad: set[str] = set()
    for record in records:
        if isinstance(record, BadNode):
            bad.add(record.host)
        elif isinstance(record, GoodNode):
            bad.discard(record.host)
    return sorted(bad)


def avoided_hosts(records: Iterable[Record]) -> list[str]:
    """Nodes that the jobs of this run exclude."""
    lines = [record for record in records if isinstance(record, AvoidedNodes)]
    return lines[-1].hosts if lines else []


def num_fruitless(records: Iterable[Record], step: int) -> int:
    """How many of the last starts in a row began from this checkpoint and made no newer one."""
    count = 0
    for record in records:
        if isinstance(record, Submitting):
            count = 0
        elif isinstance(record, Began):
            count = count + 1 if record.from_step == step else 0
    return count
