"""The jobs that hold nodes for a run: trainer and engines with `launch.mode: jobs`, and elastic engines.

A thread looks at Slurm's queue and does what `fleet` decides; the supervisor never waits. Every job has the run's name
and that of its unit, so that the supervisor of a requeued run finds the jobs of the one before, and `cancel` finds all.
"""

from __future__ import annotations

import getpass
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

from rollart_hpc.config.pools import engine_of
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import RollartError, SiteError
from rollart_hpc.files import make_directory
from rollart_hpc.launch.agents.address import write_over
from rollart_hpc.launch.elastic.engines import PoolScaler
from rollart_hpc.launch.plan import Component, Plan
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError
from rollart_hpc.launch.slurm.fleet import Fleet, QueuedJob
from rollart_hpc.launch.slurm.queue import OVER, PENDING, words
from rollart_hpc.launch.slurm.satellite_script import render_satellite
from rollart_hpc.launch.slurm.script import job_name, satellite_name
from rollart_hpc.rundir import RunDir
from rollart_hpc.wire.messages import Progress

LOOK_EVERY_S = 5.0
LEAVE_S = 6.0  # time for agents to leave by themselves at the end of the run
COMPLETING = "COMPLETING"  # its processes have ended
FIELDS = {"job": "%i", "name": "%j", "state": "%T", "reason": "%r"}

Say = Callable[[str], None]


class Satellites:
    def __init__(self, run: RunDir, config: RunConfig, plan: Plan, site: SiteConfig, slurm: Slurm, say: Say) -> None:
        self._run, self._config, self._plan, self._site = run, config, plan, site
        self._slurm, self._say = slurm, say
        self._units: dict[str, Component] = {component.job: component for component in plan.satellites}
        name = job_name(config, run)
        self._names = {satellite_name(name, unit): unit for unit in self._units}
        self._scalers = {
            pool: PoolScaler(
                one.elastic, one.engines, one.elastic.turns_per_engine or engine_of(config, pool).max_running
            )
            for pool, one in config.pools.items()
            if any(component.pool == pool for component in plan.satellites)
        }
        self._lock = threading.Lock()
        self._fleet = Fleet()
        self._problem = ""
        self._said: dict[str, str] = {}  # by class: why its jobs are pending
        self._wake, self._is_closing = threading.Event(), False
        self._thread: threading.Thread | None = None

    # --- the supervisor's side -------------------------------------------------------------------

    def open(self) -> None:
        """From now on the run needs its nodes. May be called again."""
        if self._thread is None and self._units:
            self._choose()
            self._thread = threading.Thread(target=self._work, name="satellites", daemon=True)
            self._thread.start()

    def see(self, told: Progress, now: float) -> None:
        """The controller's newest report decides about elastic engines."""
        before = {pool: scaler.num for pool, scaler in self._scalers.items()}
        for pool, scaler in self._scalers.items():
            turns = told.turns.get(pool, 0) + told.turns.get("", 0)
            if scaler.wanted(turns, now) != before[pool]:
                self._say(f"pool {pool} has {turns} turns: {before[pool]} -> {scaler.num} elastic engines")
                self._choose()
                self._wake.set()

    def _choose(self) -> None:
        """Elastic jobs that are in the queue come before others, those that run first."""
        with self._lock:
            live = {job.unit: job for job in self._fleet.live()}
            wanted = {unit for unit, component in self._units.items() if not component.pool}
            for pool, scaler in self._scalers.items():
                units = [unit for unit, component in self._units.items() if component.pool == pool]
                units.sort(key=lambda unit: (unit not in live, unit in live and live[unit].state == PENDING))
                wanted.update(units[: scaler.num])
            self._fleet.wanted = wanted

    def came(self, node: str, job: str) -> None:
        """An agent of the job stands for this node."""
        unit = self._unit_of(node)
        if unit is not None:
            with self._lock:
                self._fleet.came(unit.job)
            if node == unit.nodes[0]:
                self._note(unit, "began", int(job or 0))

    def left(self, node: str, job: str, reason: str) -> None:
        unit = self._unit_of(node)
        if unit is not None and node == unit.nodes[0]:
            self._note(unit, "ended", int(job or 0), reason)
            self._wake.set()

    def _unit_of(self, node: str) -> Component | None:
        return next((component for component in self._units.values() if node in component.nodes), None)

    def check(self) -> None:
        """Raises if the run can't get the nodes without which it can't train."""
        if self._problem:
            raise SiteError(self._problem, f"read the logs of its jobs: {self._run.job_logs}")

    def close(self) -> None:
        """The thread ends after what it is doing. Jobs stay, for the next supervisor."""
        self._is_closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(LEAVE_S)

    def end(self, at_once: bool) -> None:
        """The run is over: agents leave, and no job stays in the queue. `at_once`: there is no time to wait."""
        self.close()
        with suppress(RollartError):  # e.g. a full disk: then Slurm ends the agents
            write_over(self._run)
        if not self._units:
            return
        deadline_s = time.monotonic() + (0.0 if at_once else LEAVE_S)
        with suppress(SlurmError):
            while live := [row for row in self._queue() if row.state not in (*OVER, COMPLETING)]:
                is_late = time.monotonic() >= deadline_s
                self._cancel([row.job for row in live if is_late or row.state == PENDING])
                if is_late:
                    return
                time.sleep(0.5)

    # --- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._is_closing:
            try:
                self._look()
            except SlurmError as error:
                self._say_once("", f"Slurm does not answer: {error.what}")
            except RollartError as error:  # e.g. a full disk
                self._say_once("", error.what)
            self._wake.wait(LOOK_EVERY_S)
            self._wake.clear()

    def _look(self) -> None:
        rows = self._queue()
        with self._lock:
            orders = self._fleet.look(rows, time.monotonic())
        for row in orders.ended:
            self._say(f"job {row.job} of {row.unit} ended as {row.state}")
        self._cancel(orders.cancel)
        for unit in self._units:  # in the order of the plan: the trainer first
            if unit in orders.submit and not self._is_closing:
                self._submit(self._units[unit])
        self._say_pending()
        self._see_failures()

    def _queue(self) -> list[QueuedJob]:
        rows = self._slurm.table("squeue", FIELDS, f"--user={getpass.getuser()}", "--states=all")
        mine = [row for row in rows if row["name"] in self._names and row["job"].isdigit()]
        return [QueuedJob(self._names[row["name"]], int(row["job"]), row["state"], row["reason"]) for row in mine]

    def _submit(self, unit: Component) -> None:
        make_directory(self._run.job_logs)
        avoid = record.avoided_hosts(record.read(self._run))
        script = render_satellite(unit, self._plan, self._config, self._site, self._run, avoid)
        self._note(unit, "submitting")
        answer = self._slurm.ask("sbatch", "--parsable", stdin=script)  # SlurmSilent: the next look finds the job
        with self._lock:
            if answer.code:
                self._fleet.refused(unit.job, time.monotonic())
            else:
                job = int(answer.stdout.strip().split(";")[0])
                self._fleet.submitted(unit.job, job)
        if answer.code:
            self._say(f"Slurm refused a job for {unit.job}: {answer.stderr.strip()}")
        else:
            self._say(f"submitted job {job} for {unit.job}: {', '.join(unit.nodes)}")
            self._note(unit, "submitted", job)

    def _cancel(self, jobs: Iterable[int]) -> None:
        listed = [str(job) for job in jobs]
        if listed:
            self._slurm.ask("scancel", *listed)

    def _say_pending(self) -> None:
        with self._lock:
            pending = self._fleet.pending()
        by_class: dict[str, Counter[str]] = {component.hardware: Counter() for component in self._units.values()}
        for row in pending:
            by_class[self._units[row.unit].hardware][words(row.reason) or "waiting"] += 1
        for hardware, reasons in by_class.items():
            listed = "; ".join(f"{count} pending: {reason}" for reason, count in reasons.items())
            self._say_once(hardware, f"jobs of class {hardware}: {listed}" if listed else "")

    def _say_once(self, about: str, text: str) -> None:
        if text != self._said.get(about, "") and text:
            self._say(text)
        self._said[about] = text

    def _see_failures(self) -> None:
        """A trainer, or all engines, that never come: the run could only wait for ever."""
        most = self._config.restarts.per_role
        with self._lock:
            failed = {unit for unit in self._units if self._fleet.num_failures(unit) > most}
            wanted = set(self._fleet.wanted)
        for role in ("trainer", "engine"):
            units = {c.job for c in self._units.values() if any(proc.role == role for proc in c.procs)} & wanted
            at_home = any(proc.role == role for component in self._plan.home for proc in component.procs)
            if units and units <= failed and not at_home:
                self._problem = f"no job for {', '.join(sorted(units))} starts an agent ({most + 1} tries each)"

    def _note(self, unit: Component, what: str, job: int = 0, reason: str = "") -> None:
        name = satellite_name(job_name(self._config, self._run), unit.job)
        line = record.Satellite(what, unit.job, name, unit.hardware, unit.num_gpus, job, reason)  # type: ignore[arg-type]
        with suppress(RollartError):  # e.g. a full disk: jobs are still found by their names
            record.add(self._run, line)
