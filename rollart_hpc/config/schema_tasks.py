"""Keys of a task file. Owns their defaults and rules; `config.schema` puts them below `tasks.NAME` of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollart_hpc.config.fields import key, part
from rollart_hpc.config.modes import modes_where
from rollart_hpc.hardware import ANY

_SPLITTING = modes_where(lambda preset: not preset.install_idle)


@dataclass
class Latency:
    """A duration drawn from N(mean_s, std_s); a negative draw counts as 0."""

    mean_s: float = key(0.0, "mean in seconds", low=0)
    std_s: float = key(0.0, "standard deviation in seconds; 0 = always the mean", low=0)


@dataclass
class Trouble:
    """The same seed brings the same faults."""

    turn_latency: Latency = part(Latency, "delay added to every turn")
    reset_latency: Latency = part(Latency, "delay added to every reset")
    reset_failure_rate: float = key(0.0, "probability that a reset raises an exception", low=0, high=1)
    turn_error_rate: float = key(0.0, "probability that a turn raises an exception", low=0, high=1)
    crash_rate: float = key(0.0, "probability that the environment's process dies during a turn", low=0, high=1)
    hang_rate: float = key(0.0, "probability that a turn never returns", low=0, high=1)


@dataclass
class TaskConfig:
    """One RL task: a file in configs/tasks, or your own."""

    name: str = key("", "name of a task that the run file gives by path; empty = the file's name without its suffix")
    weight: float = key(
        1.0, "share of the task's groups in every batch, relative to the other tasks; 0 = never trained on", low=0
    )
    affinity: str = key(
        ANY,
        "pool whose engines generate for the task, or profile of such pools: compute or bandwidth; any = every pool; "
        "auto = measured: the run chooses one of these by what the task's turns take and the figures of the GPUs",
        rule="compute, bandwidth, any, auto or the name of a pool; auto needs split: false",
    )
    split: bool = key(
        False,
        "prefill every turn on pools of profile compute and decode it on those of profile bandwidth",
        rule=f"true needs engine.kind: vllm, mode {_SPLITTING}, and the same tensor_parallel and dtype in these pools",
    )
    environment: str = key(
        "",
        "environment class as package.module:Class, or path/to/file.py:Class relative to the task file",
        rule="required",
    )
    params: dict[str, Any] = key({}, "keyword arguments of the environment class")
    reward: str = key(
        "", "reward function as package.module:function, or path/to/file.py:function relative to the task file",
        rule="required",
    )  # fmt: skip
    reward_params: dict[str, Any] = key({}, "keyword arguments of the reward function")
    max_turns: int = key(16, "maximum turns per trajectory; a longer one is cut off and scored as it is", low=1)
    max_response_tokens: int = key(64, "maximum sampled tokens per turn", low=1, rule="less than max_tokens")
    max_tokens: int = key(
        1024, "maximum tokens per trajectory, prompts and answers; a longer one is cut off and scored as it is", low=2
    )
    isolation: str = key(
        "process",
        "where an environment runs",
        choices={
            "process": "in a process of its own, which can be killed at a timeout",
            "shared": "in a thread of the env worker: faster, but a crash takes the worker with it",
        },
    )
    reset_timeout_s: float = key(
        60.0, "seconds after which a reset is aborted; the trajectory is played again", low=0.01
    )
    turn_timeout_s: float = key(60.0, "seconds after which a turn is aborted; the trajectory is played again", low=0.01)
    group_filter: str = key(
        "none",
        "complete groups to drop instead of training on them",
        choices={
            "none": "keep every group",
            "same_reward": "drop groups whose rewards differ by no more than filter_tolerance",
            "same_success": "drop groups that succeeded in all plays or in none, whatever partial credit they got",
        },
    )
    filter_tolerance: float = key(1e-6, "group_filter same_reward: largest difference that counts as none", low=0)
    filter_tries: int = key(
        0,
        "groups that may be dropped in a row; the next is trained on whatever the filter says; 0 = no bound, but after "
        "flow.quarantine_after of them the task is quarantined",
        low=0,
    )
    trouble: Trouble = part(Trouble, "faults injected into the environment, for tests and benchmarks")
