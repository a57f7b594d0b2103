"""What the core obeys: the run's numbers under the switches of its mode (`config.modes`). Reads no file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rollart_hpc.config.automatic import options_of
from rollart_hpc.config.modes import preset_of
from rollart_hpc.config.pools import has_engines, pools_for, pools_with
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.estimate.pools import EngineFigures
from rollart_hpc.hardware import AUTO, BANDWIDTH, COMPUTE


@dataclass(frozen=True)
class TaskRules:
    weight: float
    pools: tuple[str, ...] = ()  # pools that serve it while one of them has an engine; () = every pool
    group_filter: str = "none"
    split: bool = False  # prefill on some pools, decode on others
    step_s: float = 60.0  # an env worker ends a reset or a turn after this time at the latest
    filter_tolerance: float = 0.0
    filter_tries: int = 0
    auto: bool = False  # `pools` holds until the core has chosen (`flow.affinity`)


@dataclass(frozen=True)
class FlowRules:
    tasks: dict[str, TaskRules]
    steps: int
    groups_per_step: int
    group_size: int
    alpha: int = 1
    redundancy: int = 0
    redundant_groups: int = 0
    streaming: bool = True
    in_order: bool = False  # groups reach the trainer in the order of their admission
    lockstep: bool = False  # no environment goes on before all have answered
    rewards_last: bool = False  # nothing is scored before all trajectories of the batch have ended
    abort_stale: bool = True
    install_idle: bool = False  # an engine installs only when it holds no trajectories
    barrier: bool = False  # batches are generated one after another; engines install in between
    direct: bool = False  # weights go straight into engines
    collective: str = "gloo"  # between relays, as asked for
    awaited: frozenset[str] = frozenset()  # pools that will have engines: at the start their tasks wait for them
    prefill_pools: tuple[str, ...] = (COMPUTE,)  # of split turns
    decode_pools: tuple[str, ...] = (BANDWIDTH,)
    seed: int = 0
    temperature: float = 1.0
    validation_plays: int = 0
    validation_every: int = 0
    validation_temperature: float = 0.0
    validation_samples: int = 1
    checkpoint_every: int = 0
    save_tries: int = 5
    quarantine_after: int = 8
    probe_s: float = 60.0  # until a quarantined task is tried again, at first
    reward_retries: int = 3
    reward_timeout_s: float = 30.0
    turn_s: float = 60.0  # see `flow.watch` for these four
    play_s: float = 30.0
    install_s: float = 600.0
    stuck_s: float = 30.0
    max_skipped_updates: int = 10  # in a row; then the run fails
    num_envs: int = 1  # workers that the run starts; how many are there is another matter
    num_rewards: int = 1
    figures: dict[str, EngineFigures] = field(default_factory=dict)  # of engines by pool, where a task is `auto`
    auto_options: dict[str, tuple[str, ...]] = field(default_factory=dict)  # what may be chosen, with its pools

    def env_seed(self, purpose: str, task: str, index: int) -> int:
        """Even seeds are for training and odd ones for validation, so no play is ever both."""
        bits = _hash(f"{self.seed if purpose == 'train' else 'held-out'}/{purpose}/{task}/{index}")
        return (bits % (1 << 30)) * 2 + (purpose == "validate")

    def sample_seed(self, purpose: str, task: str, index: int, member: int) -> int:
        return _hash(f"{self.seed}/{purpose}/{task}/{index}/{member}") % (1 << 31)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def rules_of(config: RunConfig, figures: Mapping[str, EngineFigures] | None = None) -> FlowRules:
    """The preset of `config.mode` over the run's numbers. `figures`: for tasks with `affinity: auto`."""
    preset = preset_of(config.mode)
    flow = replace(config.flow, **preset.forced)
    return FlowRules(
        tasks={
            name: TaskRules(
                task.weight,
                pools_for(config, task.affinity),
                task.group_filter,
                task.split,
                max(task.reset_timeout_s, task.turn_timeout_s),
                task.filter_tolerance,
                task.filter_tries,
                task.affinity == AUTO,
            )
            for name, task in config.tasks.items()
        },
        steps=config.steps,
        groups_per_step=flow.groups_per_step,
        group_size=flow.group_size,
        alpha=flow.alpha,
        redundancy=flow.redundancy,
        redundant_groups=flow.redundant_groups,
        streaming=flow.streaming and not config.algorithm.needs_whole_batch,
        in_order=config.deterministic,
        **preset.switches,
        direct=config.weights.transport == "direct",
        collective=config.weights.collective,
        awaited=_awaited(config),
        prefill_pools=pools_with(config, COMPUTE),
        decode_pools=pools_with(config, BANDWIDTH),
        seed=config.seed,
        temperature=flow.temperature,
        validation_plays=config.validation.plays,
        validation_every=config.validation.every,
        validation_temperature=config.validation.temperature,
        validation_samples=config.validation.samples,
        checkpoint_every=config.checkpoint.every,
        save_tries=config.checkpoint.tries,
        quarantine_after=flow.quarantine_after,
        probe_s=flow.probe_s,
        reward_retries=config.reward.retries,
        reward_timeout_s=config.reward.timeout_s,
        turn_s=config.timeouts.turn_s,
        play_s=config.timeouts.play_s,
        install_s=config.timeouts.install_s,
        stuck_s=config.timeouts.stuck_s,
        max_skipped_updates=config.trainer.max_skipped_updates,
        num_envs=config.env.workers,
        num_rewards=config.reward.workers,
        figures=dict(figures or {}),
        auto_options=options_of(config),
    )


def _awaited(config: RunConfig) -> frozenset[str]:
    """With jobs of their own, engines of a pool may come hours later, or never: training begins without them."""
    if config.launch.mode == "jobs":
        return frozenset()
    return frozenset(name for name, pool in config.pools.items() if has_engines(pool))
