"""The closed schema of a run. Owns every key, its default and its rule; reads no file.

Keys of tasks and of processes stand in `schema_tasks` and `schema_roles`; import them from here. A help text begins
with what the key is; effects and extreme values follow after a semicolon. Units stand in the names: `_s` seconds,
`_minutes`, `_tokens`, `_bytes`, `_gb`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rollart_hpc.config.fields import key, part
from rollart_hpc.config.modes import PRESETS, Mode, fixed_alphas, modes_where
from rollart_hpc.config.recipes import choices
from rollart_hpc.config.schema_launch import LaunchConfig
from rollart_hpc.config.schema_roles import (
    ControllerConfig,
    ElasticConfig,
    EngineConfig,
    EnvConfig,
    LoraConfig,
    PoolConfig,
    PoolElasticConfig,
    RewardConfig,
    TrainerConfig,
    WeightsConfig,
)
from rollart_hpc.config.schema_tasks import Latency, TaskConfig, Trouble

__all__ = [
    "AlgorithmConfig",
    "CheckpointConfig",
    "ControllerConfig",
    "ElasticConfig",
    "EngineConfig",
    "EnvConfig",
    "FlowConfig",
    "JobConfig",
    "Latency",
    "LaunchConfig",
    "LoraConfig",
    "ModelConfig",
    "PoolConfig",
    "PoolElasticConfig",
    "RestartConfig",
    "RewardConfig",
    "RunConfig",
    "TaskConfig",
    "TimeoutConfig",
    "TrainerConfig",
    "Trouble",
    "ValidationConfig",
    "WeightsConfig",
]
_REDUNDANT = modes_where(lambda preset: preset.redundancy)
_STREAMING = modes_where(lambda preset: preset.streaming)
_OWN = "a name of docs/algorithms.md, or your own as module:function or path/to/file.py:function"


@dataclass
class ModelConfig:
    kind: str = key(
        "tiny",
        "where the base model comes from",
        choices={
            "tiny": "the run makes a tiny one that knows the form of its tasks' answers",
            "directory": "a Hugging Face model directory",
        },
    )
    path: str = key(
        "", "model directory, with config.json and tokenizer.json; relative to the run file",
        rule="required with kind: directory",
    )  # fmt: skip
    parameters_b: float = key(
        0.0, "billions of parameters, from which sizes of processes are derived; 0 = counted in the directory", low=0
    )


@dataclass
class FlowConfig:
    alpha: int = key(
        1,
        "staleness bound in versions: step n trains only on trajectories that began under version n - alpha or newer; "
        f"0 = on-policy; higher keeps engines busier on older data; fixed at {fixed_alphas()}",
        low=0,
    )
    groups_per_step: int = key(16, "groups in the batch of one optimizer step", low=1)
    group_size: int = key(8, "trajectories per group: one prompt, sampled this many times", low=1)
    redundancy: int = key(
        0,
        "extra trajectories started per group; the slowest are cancelled once group_size are scored; "
        f"0 in modes other than {_REDUNDANT}",
        low=0,
        rule="0 with deterministic: true",
    )
    redundant_groups: int = key(
        0,
        "extra groups in progress beyond those of the next 1 + alpha steps, so that a slow group holds up no step; "
        f"0 in modes other than {_REDUNDANT}",
        low=0,
        rule="0 with deterministic: true",
    )
    streaming: bool = key(
        True,
        "send complete groups to the trainer before the batch is complete; "
        f"false in modes other than {_STREAMING} and with an estimator or shaping of scope batch, which needs the "
        "whole batch",
    )
    quarantine_after: int = key(
        8,
        "failures in a row of a task at one worker after which the worker is set aside, or, if another worker or the "
        "only one failed as often, the task is quarantined; also the number of dropped groups in a row that quarantine "
        "a task, and the failures allowed per trajectory of a group before the group is dropped",
        low=1,
    )
    probe_s: float = key(
        60.0, "seconds until a quarantined task is tried again; doubles each time, up to an hour", low=1
    )
    temperature: float = key(1.0, "sampling temperature in training; 1 = the model's own distribution", low=0.01)


@dataclass
class ValidationConfig:
    every: int = key(
        0,
        "steps between validations, besides one before the first step and one after the last; 0 = only those two",
        low=0,
    )
    plays: int = key(128, "trajectories per task in one validation, on held-out seeds; 0 = never validate", low=0)
    temperature: float = key(0.0, "sampling temperature in validations; 0 = greedy", low=0)
    samples: int = key(1, "plays of each held-out seed; more than 1 for pass@k, with a temperature above 0", low=1)


@dataclass
class CriticConfig:
    """It begins as the base model with an output of 0, whatever `trainer.lora` is."""

    lr: float = key(0.0, "peak learning rate of the critic, with the trainer's schedule; 0 = trainer.lr", low=0)
    warmup_steps: int = key(0, "first steps in which only the critic is trained", low=0)
    clip: float = key(
        0.5, "a value further than this from that before the step is not learnt any better; 0 = off", low=0
    )


@dataclass
class AlgorithmConfig:
    """docs/algorithms.md lists the names and parameters of every part."""

    recipe: str = key(
        "",
        "preset of this section by name; keys beside it go before it, and it drops what a `base`, or the run file if "
        "it stands on the command line, says in this section",
        choices=choices(),
    )
    estimator: str = key("grpo", "how advantages are computed from rewards", rule=_OWN)
    estimator_params: dict[str, Any] = key({}, "parameters of the estimator, e.g. {normalise_std: false}")
    loss: str = key("ppo", "policy loss of a token", rule=_OWN)
    loss_params: dict[str, Any] = key({}, "parameters of the loss, e.g. {clip_high: 0.28}")
    decoupled: bool = key(
        False,
        "take the ratios of the loss to the policy before the update, and correct for older data with corrections; "
        "false = ratios are to the log-probs at sampling; with true and one update per batch nothing is clipped",
    )
    corrections: dict[str, Any] = key(
        {},
        "weights and masks for tokens of older policies, by name, with their parameters, e.g. {token: {high: 2}}; "
        "empty = none, or with decoupled: true {token: {}}; {none: {}} = none",
        rule=f"{_OWN}; importance weights need decoupled: true",
    )
    updates: int = key(
        1,
        "optimizer updates per pass: the groups of a step are dealt out to so many mini-batches; more than 1 needs the "
        "whole batch, and one more forward pass for the log-probs before the first update",
        low=1,
        rule="at most flow.groups_per_step",
    )
    epochs: int = key(1, "passes over the groups of a step; more than 1 needs the whole batch", low=1)
    entropy: float = key(0.0, "coefficient of the entropy bonus; 0 = none", low=0)
    kl: float = key(0.0, "coefficient of the KL penalty to the base model; 0 = no reference model is loaded", low=0)
    kl_estimator: str = key("k3", "how the KL of a token is estimated", rule=_OWN)
    kl_in: str = key(
        "loss",
        "where the KL penalty is",
        choices={
            "loss": "added to the loss of each token",
            "reward": "subtracted from the advantage of the token and of those before it in its sample",
        },
    )
    kl_weighted: bool = key(
        False,
        "multiply the KL of a token in the loss by the ratio of the loss; the gradient of k3 then is that of the "
        "reverse KL, also off-policy",
    )
    kl_refresh: int = key(
        0,
        "steps after which the reference becomes a copy of the policy, again and again; 0 = it stays the base model",
        low=0,
        rule="0 with trainer.lora.rank",
    )
    kl_target: float = key(
        0.0, "KL per token that the coefficient is adapted to after every step, starting from kl; 0 = kl stays", low=0
    )
    kl_horizon: int = key(
        10000, "trajectories after which a KL far off its target has changed the coefficient by about 20%", low=1
    )
    shaping: dict[str, Any] = key(
        {},
        "what is done to rewards, plays and advantages, by name in order, e.g. {overlong: {factor: 1}}",
        rule=_OWN,
    )
    aggregation: str = key("token_mean", "how token losses become the loss of a step", rule=_OWN)
    aggregation_params: dict[str, Any] = key({}, "parameters of the aggregation, e.g. {length: 4096} of constant")

    critic: CriticConfig = part(CriticConfig, "the value model of estimators that need one (gae)")

    @property
    def needs_critic(self) -> bool:
        from rollart_hpc.config.algorithm_rules import needs_critic  # late: it reads this module

        return needs_critic(self)

    @property
    def needs_whole_batch(self) -> bool:
        """Advantages depend on all groups of the step, so no group can be streamed."""
        from rollart_hpc.config.algorithm_rules import batch_scoped  # late: it reads this module

        return bool(batch_scoped(self))


@dataclass
class CheckpointConfig:
    every: int = key(10, "steps between checkpoints; 0 = only at the end, on cancel and before a time limit", low=0)
    keep: int = key(2, "number of newest checkpoints to keep", low=1)
    tries: int = key(
        5,
        "failed saves in a row (disk full, I/O error) after which the run fails; until then it trains on and tries "
        "again after every step, or at its end after 2, 4, 8, ... seconds",
        low=1,
    )


@dataclass
class ObserveConfig:
    trace_bytes: int = key(
        2 << 20,
        "maximum size of the trace of a process in one attempt; a full trace becomes coarser instead of longer; "
        "0 = no traces",
        low=0,
    )
    record_bytes: int = key(
        0,
        "maximum size of a recording of every event and command of the core in one attempt, for `rollart-hpc replay`; "
        "about 1 kB per turn; 0 = none",
        low=0,
    )
    trace_attempts: int = key(8, "number of newest attempts whose traces are kept", low=1)
    transcripts: float = key(
        1.0, "share of groups and of validation plays whose transcripts are kept; 0 = none", low=0, high=1
    )
    transcript_tokens: float = key(
        0.05,
        "share of them, of the same groups and plays, that is kept with tokens, log-probs, versions and advantages",
        low=0,
        high=1,
    )
    transcript_bytes: int = key(
        1 << 30,
        "maximum size of the transcripts of a run, compressed; those of the oldest policy versions go first",
        low=1 << 20,
    )


@dataclass
class TimeoutConfig:
    heartbeat_s: float = key(1.0, "seconds between heartbeats of a process", low=0.05)
    silence_s: float = key(
        20.0,
        "seconds without a heartbeat after which a process counts as lost; after twice as long it is replaced",
        low=0.2,
        rule="at least twice heartbeat_s",
    )
    start_s: float = key(300.0, "seconds that all processes have to join, at every attempt; then the run fails", low=1)
    idle_s: float = key(600.0, "seconds without any progress after which the run fails", low=1)
    turn_s: float = key(
        60.0,
        "seconds that an engine may owe turns without an answer or a token before it is set aside; more if engines of "
        "its pool were slower lately (ten times their slowest, at most four times this), 1.5 times before its first "
        "answer, and twice for the only engine",
        low=0.2,
    )
    play_s: float = key(
        30.0,
        "seconds that an env worker may owe four or more plays without an answer before it is set aside; more if env "
        "workers were slower lately; also what a single play has beyond the task's own timeouts",
        low=0.2,
    )
    install_s: float = key(
        600.0,
        "seconds that an engine or relay may owe an install or a transfer of weights before it is set aside; once "
        "installs were measured, ten times the slowest and at least a tenth of this",
        low=0.2,
    )
    stuck_s: float = key(
        30.0, "seconds that the main loop of an env worker may be blocked while it owes something", low=0.2
    )


@dataclass
class RestartConfig:
    per_role: int = key(
        5,
        "maximum restarts per process; 300 s without a failure reset the count; the run fails if a relay, or the last "
        "process of a role, has none left; 0 = never restart",
        low=0,
    )
    attempts: int = key(
        5,
        "maximum restores of a run (after a lost trainer or controller, or a restarted job) without a new checkpoint; "
        "0 = the first such loss fails the run",
        low=0,
    )


@dataclass
class JobConfig:
    """Ignored on one machine. An empty value leaves the choice to the site file."""

    time_minutes: int = key(
        0, "time limit in minutes; the classes' max_minutes apply too, the smallest counts; 0 = only those", low=0
    )
    signal_s: int = key(
        120,
        "seconds before the time limit at which the run checkpoints and requeues; the checkpoint gets all but 40 s of "
        "it, or half if that is more",
        low=10,
    )
    account: str = key("", "account to charge; SBATCH_ACCOUNT overrides the run file")
    qos: str = key("", "quality of service; SBATCH_QOS overrides the run file")
    reservation: str = key("", "reservation to use; SBATCH_RESERVATION overrides the run file")
    dependency: str = key("", "jobs to wait for, as in sbatch, e.g. afterok:123")
    comment: str = key("", "comment of the job")
    sbatch: dict[str, Any] = key(
        {},
        "further sbatch options by long name, for every component, e.g. {nice: 100}; true sets a flag, false removes "
        "an option of the site",
        rule="no option that the plan decides",
    )


@dataclass
class RunConfig:
    """A run file, with task files and overrides merged in."""

    name: str = key(
        "run", "name of the run, used for its directory and job",
        rule="letters, digits, '.', '_' and '-'",
        default_text="name of the file without its suffix",
    )  # fmt: skip
    seed: int = key(0, "seed of the model, the tasks and sampling", low=0)
    steps: int = key(10, "optimizer steps; 0 = only prepare the model and validate", low=0)
    mode: str = key(
        str(Mode.ROLLART),
        "how generation and training overlap",
        choices={preset.mode: preset.summary for preset in PRESETS.values()},
    )
    deterministic: bool = key(
        False, "make results bit-reproducible; slow: one request per forward pass, no prefix reuse, groups in order"
    )
    tasks: dict[str, TaskConfig] = field(
        default_factory=dict,
        metadata={"help": "the tasks to train on, by name or by path of the task file; keys below override the file"},
    )
    model: ModelConfig = part(ModelConfig, "the model to train")
    flow: FlowConfig = part(FlowConfig, "batches, groups and staleness")
    validation: ValidationConfig = part(ValidationConfig, "trajectories on held-out seeds")
    algorithm: AlgorithmConfig = part(AlgorithmConfig, "advantages and loss")
    trainer: TrainerConfig = part(TrainerConfig, "the trainer and its ranks")
    engine: EngineConfig = part(EngineConfig, "the engines of every pool")
    pools: dict[str, PoolConfig] = field(
        default_factory=lambda: {"compute": PoolConfig(), "bandwidth": PoolConfig()},
        metadata={
            "help": "engines by pool, under names of your choice; `affinity` of a task names a pool or a profile"
        },
    )
    controller: ControllerConfig = part(ControllerConfig, "the controller process")
    env: EnvConfig = part(EnvConfig, "env workers")
    reward: RewardConfig = part(RewardConfig, "reward workers")
    weights: WeightsConfig = part(WeightsConfig, "how new weights reach the engines")
    observe: ObserveConfig = part(ObserveConfig, "how much is recorded")
    checkpoint: CheckpointConfig = part(CheckpointConfig, "when checkpoints are saved and how many are kept")
    timeouts: TimeoutConfig = part(TimeoutConfig, "when a process or the run counts as dead")
    restarts: RestartConfig = part(RestartConfig, "limits on restarts")
    job: JobConfig = part(JobConfig, "what the run asks of a cluster")
    launch: LaunchConfig = part(LaunchConfig, "as how many jobs the run is submitted")
    site: str = key("local", "site file by name or path; --site and, for cluster commands, ROLLART_SITE override it")
