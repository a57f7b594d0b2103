"""The closed schema of a run. Owns every key, its default and its rule; reads no file.

`key()` carries the rule of a field; `config.check` walks it and reports all problems at once.
Units stand in the names: `_s` seconds, `_tokens`, `_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MODES = ("sync", "sync_plus", "one_off", "areal", "rollart")
AFFINITIES = ("compute", "bandwidth", "any")


def key(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A field with its rule. `low` and `high` are inclusive."""
    metadata = {"help": help, "low": low, "high": high, "choices": choices}
    if isinstance(default, (dict, list)):
        copied = default
        return field(default_factory=lambda: type(copied)(copied), metadata=metadata)
    return field(default=default, metadata=metadata)


def part(cls: type, help: str) -> Any:
    """A nested section."""
    return field(default_factory=cls, metadata={"help": help})


@dataclass
class Latency:
    """A duration drawn from N(mean_s, std_s), cut at 0."""

    mean_s: float = key(0.0, "mean", low=0)
    std_s: float = key(0.0, "standard deviation", low=0)


@dataclass
class Trouble:
    """Trouble injected into an environment, for tests and benchmarks."""

    turn_latency: Latency = part(Latency, "added to every turn")
    reset_latency: Latency = part(Latency, "added to every reset")
    reset_failure_rate: float = key(0.0, "chance that a reset raises", low=0, high=1)
    turn_error_rate: float = key(0.0, "chance that a turn raises", low=0, high=1)
    crash_rate: float = key(0.0, "chance that the process dies in a turn", low=0, high=1)
    hang_rate: float = key(0.0, "chance that a turn never returns", low=0, high=1)


@dataclass
class TaskConfig:
    """One RL task: a file in configs/tasks, or your own."""

    name: str = key("", "name of the task")
    weight: float = key(1.0, "share of the task in every batch, relative to the others", low=0)
    affinity: str = key("any", "hardware class that serves its generation", choices=AFFINITIES)
    split: bool = key(False, "prefill on the compute pool, decode on the bandwidth pool (engine vllm)")
    environment: str = key("", "module:Class, or path/to/file.py:Class relative to the task file")
    params: dict[str, Any] = key({}, "keyword arguments of the environment")
    reward: str = key("", "module:function of the stateless reward, or path/to/file.py:function like that")
    reward_params: dict[str, Any] = key({}, "keyword arguments of the reward function")
    max_turns: int = key(16, "turns of a trajectory at most", low=1)
    max_response_tokens: int = key(64, "sampled tokens of a turn at most", low=1)
    max_tokens: int = key(1024, "tokens of a trajectory at most", low=2)
    isolation: str = key(
        "process",
        "where an environment runs: its own process, or a thread of the worker",
        choices=("process", "shared"),
    )
    reset_timeout_s: float = key(60.0, "a reset that takes longer is ended", low=0.01)
    turn_timeout_s: float = key(60.0, "a turn that takes longer is ended", low=0.01)
    group_filter: str = key("none", "which complete groups are rejected", choices=("none", "same_reward"))
    trouble: Trouble = part(Trouble, "injected trouble")


@dataclass
class ModelConfig:
    kind: str = key(
        "tiny",
        "tiny: the run makes a base model itself; directory: a Hugging Face directory",
        choices=("tiny", "directory"),
    )
    path: str = key("", "directory of the model, with kind=directory")


@dataclass
class FlowConfig:
    """How trajectories become batches."""

    alpha: int = key(
        1, "staleness bound: a step n trains on versions >= n - alpha (0 in sync modes, 1 in one_off)", low=0
    )
    groups_per_step: int = key(16, "groups in a batch", low=1)
    group_size: int = key(8, "trajectories of a group that count", low=1)
    redundancy: int = key(
        0, "trajectories started beyond group_size; the surplus is cancelled (mode rollart only)", low=0
    )
    redundant_groups: int = key(0, "groups started beyond what a step needs (mode rollart only)", low=0)
    streaming: bool = key(
        True, "send complete groups to the trainer as they arrive (mode rollart with estimator grpo only)"
    )
    quarantine_after: int = key(8, "a task is set aside after so many failures or dropped groups in a row", low=1)
    temperature: float = key(1.0, "sampling temperature in training", low=0.01)


@dataclass
class ValidationConfig:
    every: int = key(0, "validate every so many steps besides the first and last time; 0 = only those", low=0)
    plays: int = key(128, "trajectories per task in a validation; 0 = no validation", low=0)
    temperature: float = key(0.0, "sampling temperature; 0 = greedy", low=0)


@dataclass
class AlgorithmConfig:
    estimator: str = key("grpo", "advantage estimator", choices=("grpo", "reinforce"))
    normalise_std: bool = key(True, "grpo: divide by the group's standard deviation")
    clip_low: float = key(0.2, "ratio is clipped at 1 - clip_low", low=0, high=1)
    clip_high: float = key(0.2, "ratio is clipped at 1 + clip_high", low=0)
    decoupled: bool = key(False, "clip against recomputed proximal log-probs, weight by proximal / behaviour")
    entropy: float = key(0.0, "weight of the entropy bonus", low=0)
    kl: float = key(0.0, "weight of the KL penalty to the reference model; 0 = no reference", low=0)
    aggregation: str = key(
        "token_mean", "how token losses are averaged", choices=("token_mean", "sample_mean", "sample_sum")
    )


@dataclass
class LoraConfig:
    """Low-rank adapters are trained instead of the weights; engines get whole weights all the same."""

    rank: int = key(0, "rank of the adapters; 0 = all weights are trained", low=0)
    alpha: float = key(32.0, "adapters count alpha / rank", low=0)
    targets: str = key("all-linear", "layers with adapters: all-linear, or names separated by commas")


@dataclass
class MegatronConfig:
    """How kind: megatron spreads a model; what is left of the ranks are replicas."""

    tensor_parallel: int = key(1, "ranks that share every layer", low=1)
    pipeline_parallel: int = key(1, "stages that the layers are divided into", low=1)
    vocabulary_multiple: int = key(128, "rows of the vocabulary on each rank are padded to a multiple of this", low=1)


@dataclass
class TrainerConfig:
    kind: str = key("fsdp", "training backend", choices=("fsdp", "megatron"))
    ranks: int = key(1, "processes of the trainer", low=1)
    megatron: MegatronConfig = part(MegatronConfig, "parallel sizes of kind: megatron")
    lr: float = key(1e-3, "learning rate", low=0)
    warmup_steps: int = key(0, "linear warm-up", low=0)
    schedule: str = key(
        "constant", "learning rate after warm-up, over `steps`", choices=("constant", "linear", "cosine")
    )
    min_lr_ratio: float = key(0.1, "where a decaying schedule ends, relative to lr", low=0, high=1)
    weight_decay: float = key(0.0, "AdamW", low=0)
    beta1: float = key(0.9, "AdamW", low=0, high=1)
    beta2: float = key(0.95, "AdamW", low=0, high=1)
    grad_clip: float = key(1.0, "norm at which gradients are clipped; 0 = never", low=0)
    microbatch_tokens: int = key(8192, "tokens of a packed micro-batch at most (a longer sample stands alone)", low=1)
    activation_checkpointing: bool = key(False, "keep only what enters a block, compute the rest again in backward")
    lora: LoraConfig = part(LoraConfig, "low-rank adapters")
    threads: int = key(1, "torch threads of a rank on CPU", low=1)
    cpus: int = key(1, "CPUs of a rank on a cluster; each has one GPU where there are GPUs", low=1)
    memory_gb: float = key(2.0, "memory of a rank on a cluster", low=0)
    device: str = key("auto", "auto: cuda if there is one", choices=("auto", "cpu", "cuda"))
    dtype: str = key("float32", "dtype of the weights", choices=("float32", "bfloat16"))


@dataclass
class EngineConfig:
    kind: str = key("torch", "generation backend", choices=("torch", "vllm"))
    vllm: dict[str, Any] = key({}, "engine arguments of vLLM, by their names there")
    max_running: int = key(64, "requests generating at once", low=1)
    kv_slots: int = key(128, "trajectories whose KV is kept, running or between turns", low=1)
    max_prefill_tokens: int = key(2048, "prompt tokens of one forward at most", low=1)
    threads: int = key(1, "torch threads on CPU", low=1)
    cpus: int = key(1, "CPUs of an engine on a cluster; its GPUs are pools.NAME.tensor_parallel", low=1)
    memory_gb: float = key(2.0, "memory of an engine on a cluster", low=0)
    device: str = key("auto", "auto: cuda if there is one", choices=("auto", "cpu", "cuda"))
    dtype: str = key("float32", "dtype of weights and KV", choices=("float32", "bfloat16"))


@dataclass
class PoolConfig:
    """The engines of one hardware class."""

    engines: int = key(1, "engines in the pool", low=0)
    tensor_parallel: int = key(1, "GPUs (on CPU: processes) that one engine is spread over (engine vllm)", low=1)


@dataclass
class EnvConfig:
    workers: int = key(1, "env worker processes", low=1)
    slots: int = key(64, "trajectories at once in each worker", low=1)
    cpus: int = key(1, "CPUs of a worker on a cluster", low=1)
    memory_gb: float = key(1.0, "memory of a worker on a cluster", low=0)


@dataclass
class ControllerConfig:
    cpus: int = key(1, "CPUs on a cluster", low=1)
    memory_gb: float = key(1.0, "memory on a cluster", low=0)


@dataclass
class ElasticConfig:
    """Workers that come with the queue and go when it is empty: jobs of their own on a cluster."""

    max_workers: int = key(0, "elastic workers at once, besides the fixed ones; 0 = none", low=0)
    queue_per_worker: int = key(64, "calls, waiting or under way, for which one worker is enough", low=1)
    settle_s: float = key(5.0, "a longer queue must last so long before more workers are asked for", low=0)
    idle_s: float = key(60.0, "a worker that had nothing to do for so long leaves", low=0.1)
    time_minutes: int = key(60, "time limit of a worker's job on a cluster; it leaves a minute before", low=2)


@dataclass
class RewardConfig:
    workers: int = key(1, "reward worker processes", low=0)
    slots: int = key(16, "calls waiting in each worker at most", low=1)
    timeout_s: float = key(30.0, "a call that takes longer is given to another worker", low=0.01)
    retries: int = key(3, "times a failed call is tried again", low=0)
    elastic: ElasticConfig = part(ElasticConfig, "workers that come and go with the queue")
    cpus: int = key(1, "CPUs of a worker on a cluster", low=1)
    memory_gb: float = key(1.0, "memory of a worker on a cluster", low=0)


@dataclass
class WeightsConfig:
    transport: str = key(
        "staged",
        "staged: through relays while engines generate; direct: collective into engines",
        choices=("staged", "direct"),
    )
    collective: str = key(
        "gloo",
        "between relays: gloo, or mpi (one MPI world of all relays; falls back to gloo when it breaks)",
        choices=("gloo", "mpi"),
    )
    bucket_bytes: int = key(1 << 30, "size of a bucket", low=1024)
    deadline_s: float = key(60.0, "a bucket that takes longer breaks the collective", low=0.1)
    cpus: int = key(1, "CPUs of a relay on a cluster", low=1)
    memory_gb: float = key(1.0, "memory of a relay on a cluster: three versions of the weights lie in it", low=0)


@dataclass
class CheckpointConfig:
    every: int = key(10, "steps between checkpoints; 0 = only at the end", low=0)
    keep: int = key(2, "newest checkpoints kept", low=1)


@dataclass
class TimeoutConfig:
    heartbeat_s: float = key(1.0, "every process tells that it lives", low=0.05)
    silence_s: float = key(20.0, "a process not heard of for so long is lost", low=0.2)
    start_s: float = key(300.0, "all roles must have joined by then", low=1)
    idle_s: float = key(600.0, "a run in which nothing moves for so long is ended", low=1)


@dataclass
class RestartConfig:
    per_role: int = key(5, "a process is started again so often", low=0)
    attempts: int = key(5, "the run is restored so often without a new checkpoint", low=0)


@dataclass
class JobConfig:
    """What a run asks of a cluster; no effect on one machine. What is empty here comes from the site file."""

    time_minutes: int = key(0, "time limit; 0 = the smallest limit of the partitions used", low=0)
    signal_s: int = key(
        120,
        "so long before the time limit the run saves a checkpoint and is requeued",
        low=10,
    )
    account: str = key("", "account charged")
    qos: str = key("", "quality of service")
    reservation: str = key("", "reservation used")
    dependency: str = key("", "other jobs waited for, e.g. afterok:123")
    comment: str = key("", "comment of the job")
    sbatch: dict[str, Any] = key({}, "further sbatch options for every component, e.g. {nice: 100}")


@dataclass
class RunConfig:
    """A run file, with task files and overrides merged in."""

    name: str = key("run", "name of the run")
    seed: int = key(0, "seed of model, tasks and sampling", low=0)
    steps: int = key(10, "optimizer steps", low=0)
    mode: str = key("rollart", "which of the paper's systems this run is", choices=MODES)
    deterministic: bool = key(False, "bit-reproducible: one request per forward, no prefix reuse, groups in order")
    tasks: dict[str, TaskConfig] = field(
        default_factory=dict, metadata={"help": "task files by name or path, with overrides"}
    )
    model: ModelConfig = part(ModelConfig, "the model to train")
    flow: FlowConfig = part(FlowConfig, "batches, groups, staleness")
    validation: ValidationConfig = part(ValidationConfig, "held-out plays")
    algorithm: AlgorithmConfig = part(AlgorithmConfig, "loss and advantages")
    trainer: TrainerConfig = part(TrainerConfig, "trainer ranks")
    engine: EngineConfig = part(EngineConfig, "engines of every pool")
    pools: dict[str, PoolConfig] = field(
        default_factory=lambda: {"compute": PoolConfig(), "bandwidth": PoolConfig()},
        metadata={"help": "engines by hardware class", "names": AFFINITIES[:2]},
    )
    controller: ControllerConfig = part(ControllerConfig, "the controller")
    env: EnvConfig = part(EnvConfig, "env workers")
    reward: RewardConfig = part(RewardConfig, "reward workers")
    weights: WeightsConfig = part(WeightsConfig, "how weights reach the engines")
    checkpoint: CheckpointConfig = part(CheckpointConfig, "what is saved")
    timeouts: TimeoutConfig = part(TimeoutConfig, "when something counts as dead")
    restarts: RestartConfig = part(RestartConfig, "how often something is started again")
    job: JobConfig = part(JobConfig, "what the run asks of a cluster")
    site: str = key("local", "site file by name")
