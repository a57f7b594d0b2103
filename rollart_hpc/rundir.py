"""The run directory and its file names. Owns the paths, not the contents of the files.

    RUN_DIR/
      run.json                     id and creation time of the run
      config.yaml  site.yaml       resolved configuration; of site.yaml, roles read ports and figures of GPUs
      plan.json                    processes and their nodes, as planned when the run was created or changed
      changes.jsonl  earlier/      what `resume RUN_DIR key=value` changed; config.N.yaml, as it was before change N
      model/  base_model.log       base model, and the log of making it
      preloaded.log                log of the process that roles with torch are forked from
      keys/attempt_N/  agents_N/   CURVE keys, of attempts and of the supervisors that agents answer to
      agents.json                  on a cluster: where agents find the supervisor
      attempts/attempt_N/          controller.json, trainer_rendezvous.json, logs/NAME.log, trace/NAME.jsonl
      latest -> attempts/attempt_N
      checkpoints/step_N/          committed once it holds committed.json; step_N.tmp is one being written
      status.json  supervisor.json  metrics.jsonl  ledger.jsonl
      chaos.jsonl                  what `rollart-hpc chaos` did to the run
      jobs.jsonl  cluster.json     on a cluster: the run's jobs and how they ended; partitions and GPU-hours
      job.sh  slurm/NAME-ID.log    on a cluster: the batch script and its output
      elastic/                     on a cluster: jobs of elastic workers
      transcripts/                 scored trajectories and advantages, in shards of jsonl.gz
      trace.json  report.html  tensorboard/
      cache/                       files compiled by backends

The writers own the file names inside keys, checkpoints and transcripts: `wire.keys`, `roles.checkpoints`, the trainer,
`observe.shards`.
Weights in shared memory are outside the run directory: `RunDir.store_root`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rollart_hpc.errors import SiteError, UserError, command_line
from rollart_hpc.files import DIRECTORY_MODE, disk_errors, make_directory, point, read_json, write_json

RUN_ROOT_VARIABLE = "ROLLART_RUN_ROOT"
COMMITTED = "committed.json"
TRAINER_PART = "trainer"  # the trainer's subdirectory of a checkpoint
STORE_OWNER = "owner"  # in a node's directory of the store: the incarnation of its relay


class Checkpoint(NamedTuple):
    """A committed checkpoint: the state after `step` optimizer steps, i.e. policy_version `step`."""

    step: int
    path: Path


class RunDir:
    """Paths of a run directory. Only `create`, `begin_attempt` and `remove_store*` change the disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    # --- files of the run ------------------------------------------------------------------

    @property
    def identity(self) -> Path:
        return self.path / "run.json"

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def site(self) -> Path:
        return self.path / "site.yaml"

    @property
    def changes(self) -> Path:
        return self.path / "changes.jsonl"

    def earlier_config(self, number: int) -> Path:
        """The configuration before change `number`, counted from 1."""
        return self.path / "earlier" / f"config.{number}.yaml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def supervisor(self) -> Path:
        return self.path / "supervisor.json"

    @property
    def jobs(self) -> Path:
        return self.path / "jobs.jsonl"

    @property
    def script(self) -> Path:
        return self.path / "job.sh"

    @property
    def elastic(self) -> Path:
        """submitit's files for the jobs of elastic workers."""
        return self.path / "elastic"

    @property
    def job_logs(self) -> Path:
        return self.path / "slurm"

    def job_log(self, name: str) -> Path:
        return self.job_logs / f"{name}.log"

    @property
    def base_model_log(self) -> Path:
        return self.path / "base_model.log"

    @property
    def preloaded_log(self) -> Path:
        """Log of the process that roles with torch are forked from."""
        return self.path / "preloaded.log"

    @property
    def cluster(self) -> Path:
        return self.path / "cluster.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def chaos(self) -> Path:
        return self.path / "chaos.jsonl"

    @property
    def transcripts(self) -> Path:
        """Shards, whose names `observe.shards` owns."""
        return self.path / "transcripts"

    @property
    def trace(self) -> Path:
        return self.path / "trace.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def cache(self) -> Path:
        """Files that backends compile and reuse after a restart."""
        return self.path / "cache"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    # --- attempts --------------------------------------------------------------------------

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    @property
    def latest(self) -> Path:
        return self.path / "latest"

    def attempt_dir(self, attempt: int) -> Path:
        return self.attempts / f"attempt_{attempt}"

    def controller(self, attempt: int) -> Path:
        """{"address": "tcp://..."}: where workers that join later find the controller."""
        return self.attempt_dir(attempt) / "controller.json"

    def trainer_rendezvous(self, attempt: int) -> Path:
        """{"host": ..., "port": ...}: where the trainer's ranks find rank 0."""
        return self.attempt_dir(attempt) / "trainer_rendezvous.json"

    def logs(self, attempt: int) -> Path:
        return self.attempt_dir(attempt) / "logs"

    def log(self, attempt: int, name: str) -> Path:
        return self.logs(attempt) / f"{name}.log"

    def traces(self, attempt: int) -> Path:
        return self.attempt_dir(attempt) / "trace"

    def trace_part(self, attempt: int, name: str) -> Path:
        return trace_file(self.traces(attempt), name)

    def recording(self, attempt: int) -> Path:
        return self.attempt_dir(attempt) / "events.rec"

    def keys(self, attempt: int) -> Path:
        return self.path / "keys" / f"attempt_{attempt}"

    def agent_keys(self, epoch: int) -> Path:
        """Of the `epoch`-th supervisor of this run that has agents."""
        return self.path / "keys" / f"agents_{epoch}"

    def last_agent_epoch(self) -> int:
        return max(_numbers(self.path / "keys", r"agents_(\d+)"), default=0)

    @property
    def agents(self) -> Path:
        """{"address": "tcp://...", "epoch": N}: where agents find the supervisor."""
        return self.path / "agents.json"

    def attempt_numbers(self) -> list[int]:
        return _numbers(self.attempts, r"attempt_(\d+)")

    def last_attempt(self) -> int:
        """The highest attempt so far; 0 if there was none (attempts count from 1)."""
        return max(self.attempt_numbers(), default=0)

    def begin_attempt(self, under: int | None = None) -> int:
        """Make the directories of the next attempt and point `latest` to it.

        `under`: the controller of that attempt keeps running (only the trainer is restored), so its keys
        and address stay valid.
        """
        attempt = self.last_attempt() + 1
        for directory in (self.logs(attempt), self.traces(attempt)):
            make_directory(directory)
        if under is None:
            make_directory(self.keys(attempt))
        else:
            point(self.keys(attempt), self.keys(under).resolve())
            point(self.controller(attempt), self.controller(under).resolve())
        point(self.latest, self.attempt_dir(attempt))
        return attempt

    def prune_traces(self, keep: int, spared: int) -> None:
        """Remove the traces of all but the newest `keep` attempts, and of attempt `spared`, whose processes live."""
        others = [attempt for attempt in self.attempt_numbers() if attempt != spared]
        for attempt in others[: max(0, len(others) + 1 - keep)]:
            shutil.rmtree(self.traces(attempt), ignore_errors=True)

    # --- checkpoints -----------------------------------------------------------------------

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step}"

    def unfinished_checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step}.tmp"

    def committed_checkpoints(self) -> list[Checkpoint]:
        """Oldest first."""
        found = [Checkpoint(step, self.checkpoint(step)) for step in _numbers(self.checkpoints, r"step_(\d+)")]
        return [c for c in found if (c.path / COMMITTED).is_file()]

    def newest_checkpoint(self) -> Checkpoint | None:
        return next(iter(reversed(self.committed_checkpoints())), None)

    # --- identity and shared memory --------------------------------------------------------

    @property
    def run_id(self) -> str:
        identity = read_json(self.identity)
        if identity is None:
            raise UserError(f"{self.path} is not a run directory: it has no {self.identity.name}", "check the path")
        try:
            return str(identity["run_id"])
        except (KeyError, TypeError):
            raise SiteError(f"{self.identity} is damaged: it has no run_id", "restore it from a backup") from None

    @property
    def created_s(self) -> float:
        identity = read_json(self.identity) or {}
        return float(identity.get("created_s", 0.0))

    @property
    def store_root(self) -> Path:
        """Directory of this run's weights in shared memory, the same on every node; has one subdirectory per node."""
        return shared_memory() / f"rollart-{os.getuid()}-{self.run_id}"

    @property
    def kv_directory(self) -> Path:
        """Directory through which engines on this machine exchange KV."""
        return self.store_root / "kv"

    def remove_store(self) -> None:
        shutil.rmtree(self.store_root, ignore_errors=True)

    def remove_store_of(self, node: str, owner: str) -> None:
        """Free the memory of one node after its relay was killed, unless another relay has taken over."""
        with suppress(OSError):
            if (self.store_root / node / STORE_OWNER).read_text() == owner:
                shutil.rmtree(self.store_root / node, ignore_errors=True)
                self.store_root.rmdir()

    def create(self) -> RunDir:
        """Make the directory of a new run. An existing one that is not empty is a `UserError`."""
        if self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir())):
            raise UserError(
                f"run directory {self.path} already exists",
                f"choose another --run-dir, or resume that run: {command_line('resume', self.path)}",
            )
        is_new = not self.path.exists()
        try:
            make_directory(self.path)
            with disk_errors(self.path):
                self.path.chmod(DIRECTORY_MODE)
            for directory in (self.attempts, self.checkpoints):
                make_directory(directory)
            write_json(self.identity, {"run_id": secrets.token_hex(8), "created_s": time.time()})
        except BaseException:
            if is_new:  # an incomplete directory would block the next try
                shutil.rmtree(self.path, ignore_errors=True)
            raise
        return self


def _numbers(directory: Path, pattern: str) -> list[int]:
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = (re.fullmatch(pattern, name) for name in names)
    return sorted(int(m[1]) for m in matches if m)


def trace_file(directory: Path, name: str) -> Path:
    """The trace file of one process in the trace directory of an attempt."""
    return directory / f"{name}.jsonl"


def shared_memory() -> Path:
    """/dev/shm if it is writable, else the temporary directory."""
    shm = Path("/dev/shm")
    return shm if os.access(shm, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def run_root() -> Path:
    """The directory of runs that were started without --run-dir."""
    return Path(os.environ.get(RUN_ROOT_VARIABLE) or "runs").absolute()


def new_run_dir(name: str, root: Path | None = None) -> RunDir:
    """An unused path, e.g. runs/quickstart-20261116-013000. Creates nothing."""
    base = (root or run_root()) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = [base, *(base.with_name(f"{base.name}-{i}") for i in range(2, 100))]
    with disk_errors(base):
        return RunDir(next(path for path in candidates if not path.exists()))


def open_run_dir(path: str | Path) -> RunDir:
    """An existing run directory; anything else is a `UserError`."""
    run = RunDir(path)
    if not run.path.is_dir():
        raise UserError(f"there is no run directory {run.path}", f"check the path; runs are in {run_root()} by default")
    assert run.run_id
    return run


def known_runs(*roots: Path) -> list[RunDir]:
    """The runs in the run root and in `roots`, newest first; at least one."""
    born: dict[Path, float] = {}
    for identity in (path for root in (run_root(), *roots) for path in root.glob("*/run.json")):
        try:
            born[identity.parent.absolute()] = float(json.loads(identity.read_text())["created_s"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not ours, or damaged; `status RUN_DIR` says which
    if not born:
        listed = ", ".join(str(root) for root in (run_root(), *roots))
        raise UserError(f"there are no runs in {listed}", f"name a run directory, or set {RUN_ROOT_VARIABLE}")
    return [RunDir(path) for path in sorted(born, key=born.__getitem__, reverse=True)]
