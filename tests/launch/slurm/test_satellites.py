"""Jobs that hold nodes for a run, with a Slurm in memory; a real one is in tests/slurm."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.load import load_all
from rollart_hpc.errors import SiteError
from rollart_hpc.launch.agents.address import read_address, write_address
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.slurm import cancel, fleet, record, satellites
from rollart_hpc.launch.slurm.commands import Answer, Slurm, SlurmSilent
from rollart_hpc.launch.slurm.queue import Queue, job_names
from rollart_hpc.launch.slurm.satellites import Satellites
from rollart_hpc.launch.slurm.state import view
from rollart_hpc.launch.slurm.usage import _given
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState
from rollart_hpc.wire.messages import Progress

LIMIT_S = 60
ELASTIC = (
    "pools.bandwidth.elastic.max=2", "pools.bandwidth.elastic.settle_s=0", "pools.bandwidth.elastic.idle_s=0",
    "pools.bandwidth.elastic.turns_per_engine=10", "pools.bandwidth.engines=1",
)  # fmt: skip


class Memory(Slurm):
    """A queue in memory. `is_silent`: sbatch submits, but nobody hears its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[int, dict[str, str]] = {}
        self.is_silent, self.refuses = False, False

    def ask(self, *command: str, stdin: str = "", **_: Any) -> Answer:
        if command[0] == "sbatch":
            return self._submit(stdin)
        for job in (self.jobs[int(word)] for word in command[1:] if word.isdigit()):
            if job["state"] == "PENDING" or "--state=PENDING" not in command:
                job["state"] = "CANCELLED"
        return Answer(0, "", "")

    def _submit(self, script: str) -> Answer:
        if self.refuses:
            return Answer(1, "", "sbatch: error: invalid account")
        number = 100 + len(self.jobs)
        name, partition = (re.findall(f"--{key}=(.*)", script)[0] for key in ("job-name", "partition"))
        self.jobs[number] = {"job": str(number), "name": name, "partition": partition, "state": "PENDING",
                             "reason": "Resources", "start": "", "left": "", "nodes": ""}  # fmt: skip
        if self.is_silent:
            raise SlurmSilent("no answer")
        return Answer(0, f"{number}\n", "")

    def table(self, command: str, fields: Any, *options: str) -> list[dict[str, str]]:
        return [{key: row[key] for key in fields} for row in self.jobs.values()]

    def live(self) -> dict[str, str]:
        """Units and states; the names of jobs end with the unit."""
        return {
            re.sub(r"rollart-quickstart-\w{8}-", "", row["name"]): row["state"]
            for row in self.jobs.values()
            if row["state"] != "CANCELLED"
        }


def until(condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(satellites, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(satellites, "LEAVE_S", 1.0)
    monkeypatch.setattr(fleet, "FIRST_DELAY_S", 0.01)
    return RunDir(tmp_path / "run").create()


Make = Callable[..., Satellites]


@pytest.fixture
def make(run: RunDir) -> Iterator[Make]:
    made: list[Satellites] = []

    def one(slurm: Slurm, *overrides: str, say: Callable[[str], None] = print) -> Satellites:
        loaded = load_all("quickstart", ["launch.mode=jobs", *overrides], site="dev")
        plan = make_plan(loaded.config, loaded.site)
        made.append(Satellites(run, loaded.config, plan, loaded.site, slurm, say))
        return made[-1]

    yield one
    for each in made:
        each.close()


def test_nothing_is_submitted_before_the_run_needs_nodes_then_one_job_per_unit(run: RunDir, make: Make) -> None:
    slurm, said = Memory(), list[str]()
    one = make(slurm, say=said.append)
    assert not slurm.jobs
    one.open()
    until(lambda: len(slurm.jobs) == 3)
    assert next(iter(slurm.live())) == "trainer", "without it nothing is trained"
    until(lambda: any("class h20: 1 pending: waiting for free nodes (Resources)" in text for text in said))
    one.came("h20-0", "102")
    lines = [line for line in record.read(run) if isinstance(line, record.Satellite) and line.unit == "h20-0"]
    assert [(line.what, line.job) for line in lines] == [("submitting", 0), ("submitted", 102), ("began", 102)]
    assert record.satellites(record.read(run)) == {100: "trainer", 101: "h800-1", 102: "h20-0"}


def test_a_silent_sbatch_and_an_earlier_supervisor_lead_to_no_second_job(run: RunDir, make: Make) -> None:
    slurm = Memory()
    slurm.is_silent = True
    first = make(slurm)
    first.open()
    until(lambda: len(slurm.jobs) == 3)
    first.close()
    second = make(slurm)
    second.open()
    until(lambda: len(second._fleet.live()) == 3)
    assert len(slurm.jobs) == 3 and len(slurm.live()) == 3
    assert {row["name"] for row in slurm.jobs.values()} <= set(job_names(run)), "cancel finds them by name"


def test_a_cancelled_job_is_submitted_again(make: Make) -> None:
    slurm = Memory()
    one = make(slurm)
    one.open()
    until(lambda: len(slurm.jobs) == 3)
    slurm.jobs[102]["state"] = "TIMEOUT"
    until(lambda: len(slurm.jobs) == 4)
    assert slurm.jobs[103]["name"] == slurm.jobs[102]["name"]


def test_elastic_engines_follow_the_turns_of_their_pool(make: Make) -> None:
    slurm = Memory()
    one = make(slurm, *ELASTIC)
    one.open()
    until(lambda: len(slurm.live()) == 3)

    def see(turns: int) -> None:
        one.see(Progress(RunState.RUNNING, 0, 0, {}, {"bandwidth": turns}), time.monotonic())

    see(25)
    until(lambda: len(slurm.live()) == 5)
    newest = [job for job, row in slurm.jobs.items() if "elastic" in row["name"]][-1]
    slurm.jobs[newest]["state"] = "RUNNING"
    until(lambda: any(job.state == "RUNNING" for job in one._fleet.live()))
    see(15)
    until(lambda: len(slurm.live()) == 4)
    assert slurm.jobs[newest]["state"] == "RUNNING", "the one that still waits goes first"
    see(0)
    until(lambda: len(slurm.live()) == 3)


def test_at_the_end_agents_are_told_and_no_job_is_left(run: RunDir, make: Make) -> None:
    slurm = Memory()
    one = make(slurm)
    one.open()
    until(lambda: len(slurm.jobs) == 3)
    write_address(run, "tcp://x:1", 1)
    slurm.jobs[100]["state"] = "RUNNING"  # and its agent never leaves
    one.end(at_once=False)
    known = read_address(run)
    assert known is not None and known.is_over and not slurm.live()


def test_a_run_whose_trainer_never_starts_fails(make: Make) -> None:
    slurm = Memory()
    slurm.refuses = True
    one = make(slurm, "restarts.per_role=1")
    one.open()
    until(lambda: one._problem)
    with pytest.raises(SiteError, match=r"no job for .* starts an agent"):
        one.check()


def test_status_cancel_and_gpu_hours_know_all_jobs(run: RunDir, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Memory()
    for line in (record.Submitting("rollart-quickstart-x"), record.Submitted(12, 1, "rollart-quickstart-x")):
        record.add(run, line)
    record.add(run, record.Began(12, 0, -1, [], time_s=0.0))
    slurm.jobs[12] = {"job": "12", "name": "rollart-quickstart-x", "partition": "cpu", "state": "RUNNING",
                      "reason": "None", "start": "", "left": "", "nodes": "n1"}  # fmt: skip
    one = make(slurm)
    one.open()
    until(lambda: len(slurm.jobs) == 4)
    one.close()
    state = view(run, Queue(run, slurm).rows())
    assert [row.unit for row in state.jobs] == ["", "trainer", "h800-1", "h20-0"]
    assert "waiting for 2 jobs in partition h800, waiting for free nodes (Resources); 1 job in" in state.reason

    def held(what: Any, time_s: float) -> None:
        record.add(run, record.Satellite(what, "h20-0", "x", "h20", 4, 102, time_s=time_s))

    for what, time_s in (("began", 100.0), ("ended", 160.0), ("began", 200.0)):
        held(what, time_s)
    record.add(run, record.Ended(12, 0, RunState.CANCELLED, time_s=230.0))
    assert _given(record.read(run), 230.0) == {"h20": 4 * (60.0 + 30.0)}
    order = list[str]()

    class Ending(Memory):
        def ask(self, *command: str, **rest: Any) -> Answer:
            order.extend(word for word in command if word.isdigit())
            if "--batch" in command:
                return Answer(0, "", "")
            return super().ask(*command, **rest)

    ending = Ending()
    ending.jobs = slurm.jobs
    monkeypatch.setattr(cancel, "END_S", 0.0)
    cancel.cancel_jobs(run, ending, print)
    assert order[:5] == ["12", "101", "102", "103", "12"], "the trainer must save a checkpoint first"
    assert order.index("102") < len(order) - 1 - order[::-1].index("12"), "the run's own job is cancelled last"
    assert not ending.live()
