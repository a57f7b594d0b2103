"""Keys of the processes of a run: trainer, engines, env and reward workers, relays. Owns their defaults and rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollart_hpc.config.fields import key, part
from rollart_hpc.hardware import ANY, BANDWIDTH, COMPUTE, MAX_SPEED, MIN_SPEED

_FROM_MODEL = "0 = from the size of the model"


@dataclass
class LoraConfig:
    """Engines still get full weights, with the adapters merged in."""

    rank: int = key(0, "rank of the adapters; 0 = train all weights", low=0, rule="0 unless trainer.kind has LoRA")
    alpha: float = key(32.0, "scale of the adapters: their output is multiplied by alpha / rank", low=0)
    targets: str = key(
        "all-linear",
        "layers that get adapters, by name, separated by commas; all-linear = every linear layer but the head",
    )


@dataclass
class TrainerConfig:
    kind: str = key("fsdp", "training backend", backend="trainer")
    options: dict[str, Any] = key(
        {}, "settings that only this kind has", backend="trainer", rule="the keys that trainer.kind declares"
    )
    ranks: int = key(1, "trainer processes", low=1, rule="what trainer.kind and its options can divide")
    lr: float = key(1e-3, "peak learning rate of AdamW", low=0)
    warmup_steps: int = key(0, "steps over which the learning rate rises linearly to lr; 0 = none", low=0)
    schedule: str = key(
        "constant",
        "learning rate after warm-up",
        choices={
            "constant": "stays at lr",
            "linear": "falls linearly to min_lr_ratio x lr at the last step",
            "cosine": "falls along a cosine to min_lr_ratio x lr at the last step",
        },
    )
    min_lr_ratio: float = key(0.1, "final learning rate of schedules linear and cosine, relative to lr", low=0, high=1)
    weight_decay: float = key(0.0, "weight decay of AdamW; 0 = none", low=0)
    beta1: float = key(0.9, "AdamW's decay rate of the gradient average", low=0, high=1)
    beta2: float = key(0.95, "AdamW's decay rate of the squared-gradient average", low=0, high=1)
    grad_clip: float = key(1.0, "maximum gradient norm; longer gradients are scaled down to it; 0 = no clipping", low=0)
    max_skipped_updates: int = key(
        10,
        "updates in a row that may be skipped because their gradients are not finite; one more, and the run fails",
        low=0,
    )
    microbatch_tokens: int = key(
        8192,
        "maximum tokens per packed micro-batch, which bounds activation memory; a longer sample gets one of its own",
        low=1,
    )
    activation_checkpointing: bool = key(
        False, "recompute activations in the backward pass instead of storing them; less memory, more time"
    )
    lora: LoraConfig = part(LoraConfig, "low-rank adapters to train instead of all weights")
    threads: int = key(1, "torch threads per rank on CPU", low=1)
    class_: str = key("", "hardware class of the site for all ranks; empty = the one that serves compute")
    cpus: int = key(
        0, f"CPUs per rank on a cluster; {_FROM_MODEL}; each rank also gets one GPU where the class has GPUs", low=0
    )
    memory_gb: float = key(0.0, f"memory per rank on a cluster, in GB; {_FROM_MODEL}", low=0)
    device: str = key(
        "auto", "device of a rank; auto = a GPU if there is one, else the CPU", choices=("auto", "cpu", "cuda")
    )
    dtype: str = key(
        "float32",
        "type that forward and backward passes compute in; optimizer state and gradient sums stay float32",
        choices=("float32", "bfloat16"),
    )


@dataclass
class EngineSettings:
    """What may differ between pools."""

    options: dict[str, Any] = key(
        {},
        "settings that only this kind has; of vllm its engine arguments, e.g. {gpu_memory_utilization: 0.85}",
        backend="engine",
        rule="the keys that engine.kind declares; those that the run sets itself are refused",
    )
    max_running: int = key(64, "maximum requests that generate at once in an engine (vLLM: max_num_seqs)", low=1)
    kv_slots: int = key(
        128,
        "trajectories per engine whose KV is kept between turns; too few = prompts are prefilled again; kind: torch, "
        "and vLLM on CPU, allocate room for this many of max_tokens; on GPUs vLLM sizes its cache itself",
        low=1,
    )
    max_prefill_tokens: int = key(
        2048,
        "maximum prompt tokens per forward pass (vLLM: max_num_batched_tokens); "
        "more = faster prefill, but longer pauses of requests that decode",
        low=1,
    )
    threads: int = key(1, "torch threads per engine on CPU", low=1)
    cpus: int = key(0, f"CPUs per engine on a cluster; {_FROM_MODEL}; its GPUs are pools.NAME.tensor_parallel", low=0)
    memory_gb: float = key(0.0, f"memory per engine on a cluster, in GB; {_FROM_MODEL}", low=0)
    device: str = key(
        "auto", "device of an engine; auto = GPUs if there are any, else the CPU", choices=("auto", "cpu", "cuda")
    )
    dtype: str = key("float32", "type of weights and KV", choices=("float32", "bfloat16"))


@dataclass
class EngineConfig(EngineSettings):
    """`pools.NAME.engine` overrides every key but `kind` for one pool."""

    kind: str = key("torch", "generation backend", backend="engine")


@dataclass
class PoolElasticConfig:
    """Engines in addition to `engines`, each a job of its own. Ignored on one machine."""

    min: int = key(0, "engines that the run keeps even without work for them", low=0, rule="at most max")
    max: int = key(0, "maximum engines of this kind at once; 0 = the pool is not elastic", low=0)
    turns_per_engine: int = key(
        0, "turns of the pool, running or waiting, per engine; 0 = its max_running, so that none waits", low=0
    )
    settle_s: float = key(
        10.0, "seconds that the pool must have too many turns before more engines are requested", low=0
    )
    idle_s: float = key(120.0, "seconds that the pool must have more engines than it needs before one is ended", low=0)


@dataclass
class PoolConfig:
    engines: int = key(1, "engines in the pool; 0 = other pools serve its tasks", low=0)
    class_: list[str] = key(
        [],
        "hardware class of the site, or several, filled in this order; empty = the class that serves the profile that "
        "`profile` or the pool's name says",
    )
    profile: str = key(
        "",
        "work that the pool is best at; empty = its own name, if that is one, else what its class serves, else by the "
        "figures of the classes",
        choices={
            "": "find it out",
            COMPUTE: "prefill: tasks with affinity compute",
            BANDWIDTH: "decoding: tasks with affinity bandwidth",
            ANY: "both kinds of tasks",
        },
        rule="that of its name, if the pool is named compute or bandwidth",
    )
    tensor_parallel: int = key(
        1, "GPUs (on CPU: processes) per engine, all on one node; not every engine.kind uses more than one", low=1
    )
    speed: float = key(
        1.0,
        "speed of the pool's engines, relative to those of other pools with the same max_running; "
        "faster engines get more trajectories",
        low=MIN_SPEED,
        high=MAX_SPEED,
    )
    engine: dict[str, Any] = key(
        {},
        "keys of the section `engine` that differ in this pool, e.g. {dtype: bfloat16, memory_gb: 64}; options are "
        "merged with those of `engine`",
        overrides=EngineSettings,
        rule="any key of `engine` but kind",
    )
    elastic: PoolElasticConfig = part(PoolElasticConfig, "engines that join and leave while the run goes on")


@dataclass
class EnvConfig:
    workers: int = key(1, "env worker processes", low=1)
    slots: int = key(64, "trajectories that each worker plays at once", low=1)
    variables: list[str] = key(
        [], "names of environment variables that environments in processes of their own get besides the usual few"
    )
    class_: str = key("", "hardware class of the site for all workers; empty = the one that serves cpu")
    cpus: int = key(1, "CPUs per worker on a cluster", low=1)
    memory_gb: float = key(1.0, "memory per worker on a cluster, in GB", low=0)


@dataclass
class ControllerConfig:
    class_: str = key(
        "", "hardware class of the site, whose first node also runs the batch script; empty = the one that serves cpu"
    )
    cpus: int = key(0, f"CPUs of the controller on a cluster; {_FROM_MODEL}", low=0)
    memory_gb: float = key(0.0, f"memory of the controller on a cluster, in GB; {_FROM_MODEL}", low=0)


@dataclass
class ElasticConfig:
    """On a cluster each of them is a job of its own."""

    max_workers: int = key(0, "maximum elastic workers at once, in addition to reward.workers; 0 = none", low=0)
    queue_per_worker: int = key(
        64, "transcripts, queued or being scored, per worker; a longer queue asks for more", low=1
    )
    settle_s: float = key(
        5.0,
        "seconds for which the queue must be too long before workers are added; with no worker at all the first is "
        "added at once",
        low=0,
    )
    idle_s: float = key(60.0, "seconds without work after which a worker leaves", low=0.1)
    time_minutes: int = key(60, "time limit of a worker's job in minutes; the worker leaves a minute before it", low=2)


@dataclass
class RewardConfig:
    workers: int = key(1, "permanent reward worker processes; 0 = elastic or joined workers only", low=0)
    slots: int = key(16, "maximum transcripts queued at each worker, which scores one at a time", low=1)
    class_: str = key(
        "", "hardware class of the site for all workers, elastic ones too; empty = the one that serves cpu"
    )
    timeout_s: float = key(30.0, "seconds after which a reward call is aborted and counts as failed", low=0.01)
    retries: int = key(3, "retries of a failed reward call; then the trajectory is dropped and played again", low=0)
    elastic: ElasticConfig = part(ElasticConfig, "reward workers that start when the queue grows and leave when idle")
    cpus: int = key(1, "CPUs per worker on a cluster", low=1)
    memory_gb: float = key(1.0, "memory per worker on a cluster, in GB", low=0)


@dataclass
class WeightsConfig:
    transport: str = key(
        "staged",
        "how new weights reach the engines",
        choices={
            "staged": "through a relay on every node while engines generate; only the install interrupts them",
            "direct": "one collective from the trainer into all engines, which pause for it",
        },
    )
    collective: str = key(
        "gloo",
        "collective between relays",
        choices={
            "gloo": "TCP, formed again for every transfer",
            "mpi": "one MPI world of all relays; falls back to gloo when it breaks",
        },
    )
    bucket_bytes: int = key(
        1 << 30, "maximum bytes per bucket of weights; a larger tensor has its own bucket", low=1024
    )
    deadline_s: float = key(
        60.0,
        "seconds for forming a collective, and for each bucket; a slower peer breaks the transfer, which starts over",
        low=0.1,
    )
    cpus: int = key(0, f"CPUs per relay on a cluster; {_FROM_MODEL}", low=0)
    memory_gb: float = key(
        0.0, f"memory per relay on a cluster, in GB; it must hold three versions of the weights; {_FROM_MODEL}", low=0
    )
