"""What the core obeys. Owns the five modes as presets of one set of switches; reads no file.

| mode      | alpha | environments | rewards       | weights arrive        | stale ones          |
|-----------|-------|--------------|---------------|-----------------------|---------------------|
| sync      | 0     | in lockstep  | after rollout | between batches       | -                   |
| sync_plus | 0     | free         | at once       | between batches       | -                   |
| one_off   | 1     | free         | at once       | between trajectories  | -                   |
| areal     | a     | free         | at once       | in mid-request        | dropped at batching |
| rollart   | a     | free         | at once       | in mid-request        | aborted at any turn |
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from rollart_hpc.config.schema import RunConfig


@dataclass(frozen=True)
class TaskPolicy:
    weight: float
    affinity: str = "any"
    group_filter: str = "none"
    split: bool = False  # prefill on one pool, decode on the other


@dataclass(frozen=True)
class Policy:
    tasks: dict[str, TaskPolicy]
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
    install_idle: bool = False  # an engine installs only when none of its trajectories is under way
    direct: bool = False  # weights go straight into engines
    collective: str = "gloo"  # between relays, as asked for
    pools: frozenset[str] = frozenset()  # that will have engines: waited for at the start instead of falling back
    seed: int = 0
    temperature: float = 1.0
    validation_plays: int = 0
    validation_every: int = 0
    validation_temperature: float = 0.0
    checkpoint_every: int = 0
    quarantine_after: int = 8
    reward_retries: int = 3
    reward_timeout_s: float = 30.0

    def env_seed(self, purpose: str, task: str, index: int) -> int:
        """Even seeds are for training and odd ones for validation, so no play is ever both."""
        bits = _hash(f"{self.seed if purpose == 'train' else 'held-out'}/{purpose}/{task}/{index}")
        return (bits % (1 << 30)) * 2 + (purpose == "validate")

    def sample_seed(self, purpose: str, task: str, index: int, member: int) -> int:
        return _hash(f"{self.seed}/{purpose}/{task}/{index}/{member}") % (1 << 31)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def policy_of(config: RunConfig) -> Policy:
    """The preset of `config.mode` over the run's numbers."""
    flow, mode = config.flow, config.mode
    is_sync = mode in ("sync", "sync_plus")
    alpha = 0 if is_sync else 1 if mode == "one_off" else flow.alpha
    may_stream = flow.streaming and config.algorithm.estimator == "grpo"
    return Policy(
        tasks={name: TaskPolicy(t.weight, t.affinity, t.group_filter, t.split) for name, t in config.tasks.items()},
        steps=config.steps,
        groups_per_step=flow.groups_per_step,
        group_size=flow.group_size,
        alpha=alpha,
        redundancy=flow.redundancy if mode == "rollart" else 0,
        redundant_groups=flow.redundant_groups if mode == "rollart" else 0,
        streaming=may_stream and mode == "rollart",
        in_order=config.deterministic,
        lockstep=mode == "sync",
        rewards_last=mode == "sync",
        abort_stale=mode == "rollart",
        install_idle=is_sync or mode == "one_off",
        direct=config.weights.transport == "direct",
        collective=config.weights.collective,
        pools=frozenset(name for name, pool in config.pools.items() if pool.engines),
        seed=config.seed,
        temperature=flow.temperature,
        validation_plays=config.validation.plays,
        validation_every=config.validation.every,
        validation_temperature=config.validation.temperature,
        checkpoint_every=config.checkpoint.every,
        quarantine_after=flow.quarantine_after,
        reward_retries=config.reward.retries,
        reward_timeout_s=config.reward.timeout_s,
    )
