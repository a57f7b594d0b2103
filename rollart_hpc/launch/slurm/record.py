"""jobs.jsonl: what became of a run's jobs. Owns the shape of that file; asks Slurm nothing.

A line is added before a job is submitted, and when it was, begins, ends, is cancelled, or when a node was found bad or
good again. A job that was killed has no line for its end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal, Union

import msgspec

from rollart_hpc.files import append_line, mend
from rollart_hpc.rundir import RunDir


class Line(msgspec.Struct, frozen=True, tag_field="kind"):
    pass


class Submitting(Line, frozen=True, tag="submitting"):
    """From now on there may be a job of this name, even if nobody learns its id."""

    name: str
    time_s: float = msgspec.field(default_factory=time.time)


class Submitted(Line, frozen=True, tag="submitted"):
    job: int  # of the leader
    num_components: int
    name: str
    time_s: float = msgspec.field(default_factory=time.time)


class ElasticJob(Line, frozen=True, tag="elastic_job"):
    """A job of one elastic worker."""

    job: int
    name: str
    time_s: float = msgspec.field(default_factory=time.time)


class Part(msgspec.Struct, frozen=True):
    """A component as it was given."""

    job: int
    hardware: str  # class of the site
    partition: str
    hosts: list[str]
    num_gpus: int  # of all its nodes


HeldBy = Literal["script", "prompt", "user"]


class Began(Line, frozen=True, tag="began"):
    job: int
    restart: int  # how often Slurm had started it again
    from_step: int  # newest committed checkpoint; -1 = base model
    parts: list[Part]
    time_s: float = msgspec.field(default_factory=time.time)
    held_by: HeldBy = (
        "script"  # whose end gives the nodes back: the batch script, debug's prompt, or the user's own job
    )


class Ended(Line, frozen=True, tag="ended"):
    job: int
    restart: int
    state: str
    reason: str = ""
    time_s: float = msgspec.field(default_factory=time.time)


class Cancelled(Line, frozen=True, tag="cancelled"):
    """The user wants no more of this run until it is submitted again."""

    time_s: float = msgspec.field(default_factory=time.time)


class BadNode(Line, frozen=True, tag="bad_node"):
    """Jobs of this run don't go there as long as it is bad."""

    host: str
    reason: str
    time_s: float = msgspec.field(default_factory=time.time)


class GoodNode(Line, frozen=True, tag="good_node"):
    """A bad one was repaired."""

    host: str
    time_s: float = msgspec.field(default_factory=time.time)


Record = Union[Submitting, Submitted, ElasticJob, Began, Ended, Cancelled, BadNode, GoodNode]
_decode = msgspec.json.Decoder(Record).decode


def add(run: RunDir, record: Record) -> None:
    mend(run.jobs)
    append_line(run.jobs, msgspec.json.encode(record).decode(), sync=True)


def read(run: RunDir) -> list[Record]:
    """Oldest first; a line that was torn by a crash is left out."""
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
    """A job may begin before its id is written down: what counts is that somebody set out to submit it."""
    words = [record for record in records if isinstance(record, (Submitting, Cancelled))]
    return bool(words) and isinstance(words[-1], Cancelled)


def is_guest(records: Iterable[Record]) -> bool:
    """Is its newest start in a job that was the user's before, and will be after?"""
    words = [record for record in records if isinstance(record, (Submitting, Began))]
    return bool(words) and isinstance(words[-1], Began) and words[-1].held_by == "user"


def bad_hosts(records: Iterable[Record]) -> list[str]:
    """Those that were bad when last looked at."""
    bad: set[str] = set()
    for record in records:
        if isinstance(record, BadNode):
            bad.add(record.host)
        elif isinstance(record, GoodNode):
            bad.discard(record.host)
    return sorted(bad)


def num_fruitless(records: Iterable[Record], step: int) -> int:
    """Starts in a row, up to the last one, that began from this same checkpoint: none of them got further."""
    count = 0
    for record in records:
        if isinstance(record, Submitting):
            count = 0
        elif isinstance(record, Began):
            count = count + 1 if record.from_step == step else 0
    return count
