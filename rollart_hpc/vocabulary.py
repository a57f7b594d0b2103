"""The closed vocabularies of a run: exit codes, states, drop reasons, events. Owns the words and their properties.

Each word has its meaning next to it. `make docs` generates the tables of docs/runs.md from them. Files and messages
contain the words, so changing a word makes older run directories unreadable: add a new one instead. Does not know who
uses a word, and imports nothing from the package.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Self

DONE = "done"  # how a play ended, if it did not fail; every other outcome is a DropReason


class ExitCode(IntEnum):
    """The exit codes of all processes and commands."""

    meaning: str

    def __new__(cls, code: int, meaning: str = "") -> Self:
        self = int.__new__(cls, code)
        self._value_ = code
        self.meaning = meaning
        return self

    OK = 0, "success"
    CRASHED = 1, "a process of the run failed unexpectedly; its log has a traceback"
    USER = 2, "the request is wrong: a bad configuration, a missing file, an existing directory"
    ENVIRONMENT = 3, "a problem with the machine or the cluster, or the run failed"
    LINK_LOST = 4, "a process of the run lost the controller; the supervisor restarts it"
    DRAINED = 5, "the run ended before its last step and can be resumed"
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
    """The state of a run, in status.json, supervisor.json and jobs.jsonl, and in the output of `status`."""

    meaning: str
    exit_code: ExitCode | None  # None: a run in this state is not over

    def __new__(cls, word: str, meaning: str = "", exit_code: ExitCode | None = None) -> Self:
        self = str.__new__(cls, word)
        self._value_ = word
        self.meaning, self.exit_code = meaning, exit_code
        return self

    UNKNOWN = "unknown", "there is no status file, or it can't be read"
    PREPARING = "preparing", "the base model is being made or copied"
    PENDING = "pending", "its job is waiting in the cluster's queue"
    STARTING = "starting", "processes are starting; no engine has weights yet"
    RUNNING = "running", "generating and training"
    REQUEUED = "requeued", "its job has ended and is back in the queue; Slurm will restart it"
    FINISHED = "finished", "all steps are done", ExitCode.OK
    DRAINED = "drained", "ended early; can be resumed from its newest checkpoint", ExitCode.DRAINED
    CANCELLED = "cancelled", "ended by `rollart-hpc cancel` or `scancel`; can be resumed", ExitCode.DRAINED
    FAILED = "failed", "ended by an error, which is shown as the reason; can be resumed", ExitCode.ENVIRONMENT
    KILLED = "killed", "its supervisor died without recording why; can be resumed", ExitCode.ENVIRONMENT

    @property
    def is_over(self) -> bool:
        return self.exit_code is not None

    @property
    def can_resume(self) -> bool:
        return self.is_over and self is not RunState.FINISHED


class ProcessState(_Word):
    """The state of a process as the controller sees it."""

    ALIVE = "alive", "joined, and sending heartbeats"
    LEFT = "left", "left because it was idle"
    LOST = "lost", "ended, or its connection broke"
    SILENT = "silent", "lost because its heartbeats stopped; it may come back"


class DropReason(_Word):
    """Why a trajectory, or an answer about one, was not used. The keys of `dropped` in the status."""

    SURPLUS = "surplus", "a redundant trajectory of a group that was already complete"
    GROUP_STALE = "group_stale", "its group was too stale for any later step"
    GROUP_FILTERED = "group_filtered", "the task's `group_filter` rejected its group"
    GROUP_FAILED = "group_failed", "its group failed too often"
    QUARANTINED = "quarantined", "its task failed too often"
    ROLLED_BACK = "rolled_back", "started under a version that a restore rolled back"
    TRAINED_ROLLED_BACK = "trained_rolled_back", "trained in a step that a restore rolled back"
    VALIDATION_ROLLED_BACK = "validation_rolled_back", "a validation play of a version that a restore rolled back"
    NO_PLACE = "no_place", "a saved group that does not fit the task mix of the resumed run"
    RESET_FAILED = "reset_failed", "the environment could not be reset; the trajectory is played again"
    RESET_TIMEOUT = "reset_timeout", "the reset took longer than `reset_timeout_s`; the trajectory is played again"
    ENV_ERROR = "env_error", "the environment raised an error; the trajectory is played again"
    ENV_CRASHED = "env_crashed", "the environment's process died; the trajectory is played again"
    ENV_TIMEOUT = "env_timeout", "a turn took longer than `turn_timeout_s`; the trajectory is played again"
    ENV_WORKER_LOST = "env_worker_lost", "the env worker was lost; the trajectory is played again"
    ENGINE_LOST = "engine_lost", "the engine was lost; the turn is generated again"
    WORKER_ASIDE = "worker_aside", "its worker was set aside; another worker is asked"
    TURN_TIMEOUT = "turn_timeout", "an engine that answers others did not answer this turn; another engine is asked"
    PLAY_TIMEOUT = "play_timeout", "an env worker did not answer about this play in time; it is played again"
    NO_ROOM = "no_room", "the engine had no room for the turn; the trajectory is played again"
    MALFORMED = "malformed", "a worker's message about it did not fit; the trajectory is played again"
    REWARD_FAILED = "reward_failed", "the reward function failed more than `reward.retries` times"
    SCORE_TIMEOUT = "score_timeout", "a reward worker did not answer in time; the transcript is scored again elsewhere"
    RUN_ENDED = "run_ended", "unfinished when the run ended"
    SUPERSEDED = "superseded", "a late answer to a request that had been cancelled or repeated"
    UNKNOWN_REASON = "unknown_reason", "a reason unknown to this version, from a process or a checkpoint"

    @classmethod
    def of(cls, word: str) -> DropReason:
        """The reason for a word from a message or a file."""
        return _DROP_REASONS.get(word, cls.UNKNOWN_REASON)

    @property
    def is_reset(self) -> bool:
        """The task never started. Several such failures in a row mean that it can't."""
        return self in (DropReason.RESET_FAILED, DropReason.RESET_TIMEOUT)

    @property
    def blames_worker(self) -> bool:
        """Several such failures in a row at one worker mean that it, or the task, is broken."""
        return self in _BLAMES_WORKER

    @property
    def blames_task(self) -> bool:
        """Several such groups in a row mean that the task yields nothing to train on."""
        return self in (DropReason.GROUP_FILTERED, DropReason.GROUP_FAILED)


_BLAMES_WORKER = frozenset({
    DropReason.RESET_FAILED, DropReason.RESET_TIMEOUT, DropReason.ENV_ERROR, DropReason.ENV_CRASHED,
    DropReason.ENV_TIMEOUT, DropReason.PLAY_TIMEOUT, DropReason.REWARD_FAILED,
})  # fmt: skip
_DROP_REASONS: dict[str, DropReason] = {reason.value: reason for reason in DropReason}


class LineKind(_Word):
    """The kind of a line in metrics.jsonl (`kind`)."""

    STEP = "step", "an optimizer step"
    VALIDATION = "validation", "a task's score in a validation"
    EVENT = "event", "an event; `what` names it"


class EventKind(_Word):
    """The events in metrics.jsonl: `what`, in lines whose kind is `event`."""

    WORKER_JOINED = "worker_joined", "a process has joined the run"
    WORKER_LOST = "worker_lost", "a process was lost or is silent"
    WORKER_LEFT = "worker_left", "a process left because it was idle"
    WORKER_ASIDE = "worker_aside", "a process owes answers or keeps failing; it gets no work until it comes back"
    WORKER_BACK = "worker_back", "a process that was set aside gets work again"
    RUNNING = "running", "the first engine has weights"
    CHECKPOINT = "checkpoint", "a checkpoint was committed; `name` is its version"
    SAVE_FAILED = "save_failed", "a checkpoint could not be saved and will be tried again; `name` is its version"
    CHECKPOINT_DAMAGED = "checkpoint_damaged", "a checkpoint was damaged and set aside; `name` is the one used instead"
    TASK_FAILED = "task_failed", "a play of this task failed for the first time"
    TASK_QUARANTINED = "task_quarantined", "this task failed too often; the run continues without it"
    TASK_RETURNED = "task_returned", "a quarantined task is tried again"
    AFFINITY = "affinity_changed", "the run chose other pools for this task, which has `affinity: auto`"
    UPDATE_SKIPPED = "update_skipped", "gradients were not finite, so an optimizer step did not change the weights"
    FINISHED = "finished", "the controller ended the run: all steps are done"
    DRAINED = "drained", "the controller ended the run early"
    FAILED = "failed", "the controller ended the run because of an error"

    @property
    def ends_run(self) -> bool:
        return self in (EventKind.FINISHED, EventKind.DRAINED, EventKind.FAILED)
