"""Elastic reward workers as jobs on a cluster. Knows which are alive. A thread calls Slurm; the supervisor never waits.

Every job is recorded in jobs.jsonl and has the run's name. So `cancel` finds it even if this process dies, and this
process finds it even if sbatch timed out after it had submitted the job.
"""

from __future__ import annotations

import getpass
import queue
import subprocess
import threading
import time
from contextlib import suppress

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import RollartError
from rollart_hpc.launch.command import environment, python
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError, clean_environment
from rollart_hpc.launch.slurm.queue import ENDED_WELL, LIVE, OVER, PENDING
from rollart_hpc.launch.slurm.script import elastic_name, job_name
from rollart_hpc.rundir import RunDir

ASK_EVERY_S = 10.0
SUBMIT_S = 120.0  # timeout of sbatch
END_S = 10.0
LEAVE_S = 2.0  # seconds from the controller losing a worker to the end of the worker's job
CANCEL_PENDING, LOOK_SOON, CLOSE = 0, -1, -2


class SlurmWorkers:
    def __init__(self, run: RunDir, config: RunConfig, slurm: Slurm) -> None:
        self._run, self._slurm = run, slurm
        self._name = elastic_name(job_name(config, run))
        self._orders: queue.SimpleQueue[int] = queue.SimpleQueue()  # how many to submit, or one of the orders above
        self._lock = threading.Lock()
        self._states: dict[int, str] = {}  # job id -> state, of jobs that are not over
        self._num_ordered = 0  # not submitted yet
        self._failures: list[str] = []
        self._in_doubt = False  # the queue may contain jobs of ours whose ids are unknown
        self._thread: threading.Thread | None = None

    # --- the supervisor's side -----------------------------------------------------------------

    def request(self, count: int) -> None:
        with self._lock:
            self._num_ordered += count
        self._orders.put(count)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="elastic", daemon=True)
            self._thread.start()

    @property
    def num_requested(self) -> int:
        with self._lock:
            return self._num_ordered + len(self._states)

    @property
    def num_pending(self) -> int:
        with self._lock:
            return sum(state == PENDING for state in self._states.values())

    def failures(self) -> list[str]:
        with self._lock:
            found, self._failures = self._failures, []
            return found

    def worker_left(self) -> None:
        self._orders.put(LOOK_SOON)

    def cancel_pending(self) -> None:
        self._orders.put(CANCEL_PENDING)

    def end(self) -> None:
        """Cancel jobs by id and by name. Running workers hear from the controller that the run is over."""
        if self._thread is None:
            return
        with suppress(SlurmError):
            self._slurm.ask("scancel", f"--user={getpass.getuser()}", f"--name={self._name}", limit_s=END_S)
        with self._lock:
            self._states.clear()

    def close(self) -> None:
        """The thread ends after the orders it already has. Nothing joins it, because sbatch may hang."""
        self._orders.put(CLOSE)

    # --- the thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        asked_s = time.monotonic()
        while True:
            with suppress(queue.Empty):
                order = self._orders.get(timeout=max(0.1, asked_s + ASK_EVERY_S - time.monotonic()))
                if order == CLOSE:
                    return
                if order == CANCEL_PENDING:
                    self._cancel_waiting()
                elif order == LOOK_SOON:
                    asked_s = time.monotonic() - ASK_EVERY_S + LEAVE_S
                else:
                    self._submit(order)
                continue
            asked_s = time.monotonic()
            if self._states or self._in_doubt:
                self._ask()

    def _submit(self, count: int) -> None:
        """Submits from a subprocess whose environment is not that of this job."""
        command = python(
            "-m", "rollart_hpc.launch.elastic.submit", "--run-dir", str(self._run.path), "--count", str(count)
        )
        ids: list[int] = []
        problem = ""
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=SUBMIT_S, stdin=subprocess.DEVNULL,
                cwd=self._run.path, env=clean_environment(environment()),
            )  # fmt: skip
            ids = _ids(done.stdout)
            problem = done.stderr.strip().splitlines()[-1] if done.returncode and done.stderr.strip() else ""
        except subprocess.TimeoutExpired as error:
            ids = _ids(error.stdout)
            problem = f"sbatch did not answer within {SUBMIT_S:g} s"
        self._take_on(dict.fromkeys(ids, PENDING))
        num_found = len(ids)
        if num_found < count:
            num_found += self._ask()
            self._in_doubt = True  # slurmctld may still accept the job
        with self._lock:
            self._num_ordered -= count
            if num_found < count:
                self._failures.append(problem or "no job was submitted")

    def _take_on(self, states: dict[int, str]) -> None:
        for job_id in states:
            with suppress(RollartError):  # e.g. a full disk: `cancel` still finds the job by its name
                record.add(self._run, record.ElasticJob(job_id, self._name))
        with self._lock:
            self._states |= states

    def _ask(self) -> int:
        """Update the states. Returns how many unknown jobs of this name were found; they are ours too."""
        with self._lock:
            known = sorted(self._states)
        mine = (f"--user={getpass.getuser()}", f"--name={self._name}")
        try:
            rows = self._slurm.table("squeue", {"id": "%i", "state": "%T"}, *mine, "--states=all")
        except SlurmError:
            return 0  # no answer: keep the known states
        self._in_doubt = False
        states = {int(row["id"]): row["state"] for row in rows}
        unknown = {job_id: state for job_id, state in states.items() if job_id not in known and state in LIVE}
        self._take_on(unknown)
        with self._lock:
            for job_id in known:
                state = states.get(job_id, "COMPLETED")  # Slurm no longer knows it
                if state not in OVER:
                    self._states[job_id] = state
                elif self._states.pop(job_id, None) is not None and state not in ENDED_WELL:
                    self._failures.append(f"job {job_id} ended as {state}")
        return len(unknown)

    def _cancel_waiting(self) -> None:
        with suppress(SlurmError):
            self._slurm.run("scancel", f"--user={getpass.getuser()}", f"--name={self._name}", "--state=PENDING")
            self._ask()


def _ids(printed: str | bytes | None) -> list[int]:
    text = printed.decode() if isinstance(printed, bytes) else printed or ""
    return [int(line) for line in text.split()]
