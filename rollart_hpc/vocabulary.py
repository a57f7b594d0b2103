"""The closed vocabularies of a run: exit codes, states, drop reasons, events. Owns the words and what belongs to them.

Every word has its meaning beside it; `make docs` prints the tables of docs/runs.md from here. A word is written to
files and messages as it stands here, so changing one makes older run directories unreadable: add words instead.
Knows nothing of who uses a word, and imports nothing of the package.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Self

DONE = "done"  # how a play ends that has not failed; every other end is a DropReason


class ExitCode(IntEnum):
    """Of every process and every command."""

    meaning: str

    def __new__(cls, code: int, meaning: str = "") -> Self:
        self = int.__new__(cls, code)
        self._value_ = code
        self.meaning = meaning
        return self

    OK = 0, "success"
    CRASHED = 1, "a process of the run failed in an unexpected way; its log has a traceback"
    USER = 2, "the request can't be carried out as written"
    ENVIRONMENT = 3, "the machine can't do it, or the run failed"
    LINK_LOST = 4, "a process of the run lost the controller; the supervisor restarts it"
    DRAINED = 5, "the run was ended before its last step and can be resumed"
    INTERRUPTED = 130, "interrupted by Ctrl-C"


class _Word(StrEnum):
    """A word with its meaning."""

    meaning: str

    def __new__(cls, word: str, meaning: str = "") -> Self:
        self = str.__new__(cls, word)
        self._value_ = word
        self.meaning = meaning
        return self


class RunState(StrEnum):
    """How a run is doing: in status.json, supervisor.json and jobs.jsonl, and as `status` prints it."""

    meaning: str
    exit_code: ExitCode | None  # of a run that ended like this; None: it is not over

    def __new__(cls, word: str, meaning: str = "", exit_code: ExitCode | None = None) -> Self:
        self = str.__new__(cls, word)
        self._value_ = word
        self.meaning, self.exit_code = meaning, exit_code
        return self

    UNKNOWN = "unknown", "there is no status, or it can't be read"
    PREPARING = "preparing", "the base model is being made or copied"
    PENDING = "pending", "its job waits in the queue of the cluster"
    STARTING = "starting", "processes are starting; no engine has weights yet"
    RUNNING = "running", "it generates and trains"
    REQUEUED = "requeued", "this start of its job is over; Slurm will start it again"
    FINISHED = "finished", "all steps are done", ExitCode.OK
    DRAINED = "drained", "ended early; can be resumed from its newest checkpoint", ExitCode.DRAINED
    CANCELLED = "cancelled", "ended by `rollart-hpc cancel` or `scancel`; can be resumed", ExitCode.DRAINED
    FAILED = "failed", "ended by an error that the reason names; can be resumed", ExitCode.ENVIRONMENT
    KILLED = "killed", "its supervisor is gone and could not say why; can be resumed", ExitCode.ENVIRONMENT

    @property
    def is_over(self) -> bool:
        return self.exit_code is not None

    @property
    def can_resume(self) -> bool:
        return self.is_over and self is not RunState.FINISHED


class ProcessState(_Word):
    """How the controller sees a process."""

    ALIVE = "alive", "it has joined and is heard from"
    LEFT = "left", "it left because it had nothing to do"
    LOST = "lost", "it is gone: it ended, or its connection broke"
    SILENT = "silent", "it is lost because it was not heard from; it may come back"


class DropReason(_Word):
    """Why a trajectory, or an answer about one, was not used. The keys of `dropped` in the status."""

    SURPLUS = "surplus", "a redundant trajectory of a group that was complete"
    GROUP_STALE = "group_stale", "its group was too old for every step to come"
    GROUP_FILTERED = "group_filtered", "its group was rejected by the task's `group_filter`"
    GROUP_FAILED = "group_failed", "its group failed too often"
    QUARANTINED = "quarantined", "its task failed too often"
    ROLLED_BACK = "rolled_back", "began under a version that a restore took back"
    TRAINED_ROLLED_BACK = "trained_rolled_back", "trained in a step that a restore took back"
    VALIDATION_ROLLED_BACK = "validation_rolled_back", "a validation play of a version that a restore took back"
    NO_PLACE = "no_place", "a saved group that the resumed run's mix has no place for"
    RESET_FAILED = "reset_failed", "the environment could not be reset; the trajectory is played again"
    RESET_TIMEOUT = "reset_timeout", "the reset took longer than `reset_timeout_s`; the trajectory is played again"
    ENV_ERROR = "env_error", "the environment raised an error; the trajectory is played again"
    ENV_CRASHED = "env_crashed", "the environment's process died; the trajectory is played again"
    ENV_TIMEOUT = "env_timeout", "a turn took longer than `turn_timeout_s`; the trajectory is played again"
    ENV_WORKER_LOST = "env_worker_lost", "the env worker was lost; the trajectory is played again"
    ENGINE_LOST = "engine_lost", "the engine was lost; the turn is generated again"
    NO_ROOM = "no_room", "the engine had no room for the turn; the trajectory is played again"
    REWARD_FAILED = "reward_failed", "the reward function failed more than `reward.retries` times"
    SCORE_TIMEOUT = "score_timeout", "a reward worker did not answer in time; the transcript is scored again"
    RUN_ENDED = "run_ended", "still under way when the run ended"
    SUPERSEDED = "superseded", "an answer to a question that had been withdrawn"
    UNKNOWN_REASON = "unknown_reason", "a reason that this version does not know, from a process or a checkpoint"

    @classmethod
    def of(cls, word: str) -> DropReason:
        """What came from outside: a message, a file."""
        return _DROP_REASONS.get(word, cls.UNKNOWN_REASON)

    @property
    def is_reset(self) -> bool:
        """The task never began: several in a row mean that it can't."""
        return self in (DropReason.RESET_FAILED, DropReason.RESET_TIMEOUT)

    @property
    def blames_task(self) -> bool:
        """Of a group: several in a row mean that the task yields nothing to train on."""
        return self in (DropReason.GROUP_FILTERED, DropReason.GROUP_FAILED)


_DROP_REASONS: dict[str, DropReason] = {reason.value: reason for reason in DropReason}


class LineKind(_Word):
    """What a line of metrics.jsonl is (`kind`)."""

    STEP = "step", "an optimizer step"
    VALIDATION = "validation", "the score of a task in a validation"
    EVENT = "event", "something that happened, named by `what`"


class EventKind(_Word):
    """What happened, in a line of metrics.jsonl whose kind is `event` (`what`)."""

    WORKER_JOINED = "worker_joined", "a process has joined the run"
    WORKER_LOST = "worker_lost", "a process is gone or silent"
    WORKER_LEFT = "worker_left", "a process left because it had nothing to do"
    RUNNING = "running", "the first engine has weights"
    CHECKPOINT = "checkpoint", "a checkpoint is committed; `name` is its version"
    TASK_FAILED = "task_failed", "a play of this task failed for the first time"
    TASK_QUARANTINED = "task_quarantined", "this task failed too often; the run goes on without it"
    FINISHED = "finished", "the controller ended the run: all steps are done"
    DRAINED = "drained", "the controller ended the run early"
    FAILED = "failed", "the controller gave the run up"

    @property
    def ends_run(self) -> bool:
        return self in (EventKind.FINISHED, EventKind.DRAINED, EventKind.FAILED)
