"""What a simulation says: time per step, tokens, where time goes, cost. Owns how it is measured; prints nothing.

The first steps of a run are not like the others: nothing is buffered yet. So `warm_up` steps do not count, and the run
has more steps than are simulated, so that it does not end either.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from rollart_hpc.errors import SiteError
from rollart_hpc.launch.planned import Plan
from rollart_hpc.simulate.build import Case, build
from rollart_hpc.simulate.cluster import Cluster
from rollart_hpc.simulate.engine import Spent

_BEYOND = 2  # steps that the run would have after the last simulated one, besides alpha


@dataclass(frozen=True)
class Share:
    """Of the time of a pool's engines."""

    prefill: float
    decode: float
    install: float

    @property
    def idle(self) -> float:
        return max(0.0, 1.0 - self.prefill - self.decode - self.install)

    @property
    def busy(self) -> float:
        return self.prefill + self.decode


@dataclass(frozen=True)
class Outcome:
    """One mode and one seed, measured after the warm-up."""

    mode: str
    seed: int
    step_s: float
    tokens_per_s: float  # sampled
    trained_tokens_per_s: float  # of trajectories that were trained on, prompts and answers
    train_s: float  # of a step, of the trainer's time
    wait_s: float
    packing: float  # efficiency
    pools: dict[str, Share]
    spent_s: dict[str, float]  # per step, by all processes together
    cached: float  # share of prompt tokens that were in the KV cache
    rebuilt: float  # tokens computed again after installs, per sampled token
    staleness: float  # mean, of trained trajectories
    dropped: dict[str, int]
    turns: int
    events: int
    cpu_s: float
    cost_per_step: float = 0.0
    gpu_hours_per_step: float = 0.0
    ended: str = ""  # why it ended early

    @property
    def bound(self) -> str:
        """What the step waits for."""
        if self.train_s > 0.85 * self.step_s:
            return "trainer"
        busiest = max(self.pools, key=lambda pool: self.pools[pool].busy, default="")
        if busiest and self.pools[busiest].busy > 0.85:
            return f"pool {busiest}"
        if any(share.install > 0.25 for share in self.pools.values()):
            return "weights"
        return "latency of groups"

    def as_dict(self) -> dict[str, Any]:
        pools = {name: {**asdict(share), "idle": share.idle} for name, share in self.pools.items()}
        return {**asdict(self), "pools": pools, "bound": self.bound}


def simulate(
    case: Case, *, steps: int, warm_up: int = 2, seed: int | None = None, plan: Plan | None = None
) -> tuple[Outcome, Cluster]:
    """Simulate `warm_up + steps` steps of a case."""
    config = case.config if seed is None else replace(case.config, seed=seed)
    case = replace(case, config=config)
    alpha = config.flow.alpha
    cluster = Cluster(build(case, steps=warm_up + steps + alpha + _BEYOND, plan=plan))
    return measure(cluster, config.mode, config.seed, steps, warm_up), cluster


def measure(cluster: Cluster, mode: str, seed: int, steps: int, warm_up: int) -> Outcome:
    with no_garbage():
        return _measure(cluster, mode, seed, steps, warm_up)


@contextmanager
def no_garbage() -> Iterator[None]:
    """The core leaves no reference cycles behind, and looking for them takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def _measure(cluster: Cluster, mode: str, seed: int, steps: int, warm_up: int) -> Outcome:
    began_s = time.process_time()
    pools = list(dict.fromkeys(engine.pool for engine in cluster.spec.engines))
    cluster.run(warm_up)
    before, start_s, trained = {pool: cluster.spent(pool) for pool in pools}, cluster.clock.now, cluster.trainer.tokens
    cluster.run(warm_up + steps)
    counted = cluster.steps[warm_up:]
    if not counted:
        raise SiteError(
            f"the simulated run ended after {len(cluster.steps)} steps: {cluster.reason or 'nothing could go on'}",
            "look at its failures and at the limits of its tasks",
        )
    seconds = cluster.clock.now - start_s
    return Outcome(
        mode=mode,
        seed=seed,
        step_s=seconds / len(counted),
        tokens_per_s=sum(step.tokens for step in counted) / seconds,
        trained_tokens_per_s=(cluster.trainer.tokens - trained) / seconds,
        train_s=statistics.fmean(step.train_s for step in counted),
        wait_s=statistics.fmean(step.wait_s for step in counted),
        packing=statistics.fmean(each[2] for each in cluster.trainer.steps[warm_up:]),
        pools={pool: _share(cluster, pool, before[pool], seconds) for pool in pools},
        spent_s=_per_step([step.spent_s for step in counted]),
        **_tokens(cluster, pools, before),
        staleness=_staleness(cluster),
        dropped={str(reason): count for reason, count in cluster.core.tally.dropped.items() if count},
        turns=cluster.turns,
        events=cluster.events,
        cpu_s=time.process_time() - began_s,
        ended=cluster.reason if cluster.ended else "",
    )


def _share(cluster: Cluster, pool: str, before: Spent, seconds: float) -> Share:
    now, num = cluster.spent(pool), sum(engine.pool == pool for engine in cluster.spec.engines)
    whole = max(1e-9, num * seconds)
    return Share(
        (now.prefill_s - before.prefill_s) / whole,
        (now.decode_s - before.decode_s) / whole,
        (now.install_s - before.install_s) / whole,
    )


def _tokens(cluster: Cluster, pools: list[str], before: dict[str, Spent]) -> dict[str, float]:
    def grown(key: str) -> float:
        return float(sum(getattr(cluster.spent(pool), key) - getattr(before[pool], key) for pool in pools))

    cached, computed = grown("cached_tokens"), grown("prefill_tokens")
    return {
        "cached": cached / max(1.0, cached + computed),
        "rebuilt": grown("rebuilt_tokens") / max(1.0, grown("decode_tokens")),
    }


def _staleness(cluster: Cluster) -> float:
    counts = cluster.core.tally.staleness
    return sum(age * count for age, count in counts.items()) / max(1, sum(counts.values()))


def _per_step(spent: list[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for each in spent for name in each})
    return {name: statistics.fmean(each.get(name, 0.0) for each in spent) for name in names}


def with_cost(outcome: Outcome, plan: Plan) -> Outcome:
    """Of the nodes that the plan has, for as long as a step takes."""
    hours = outcome.step_s / 3600
    cost = sum(component.cost_per_hour for component in plan.components)
    gpus = sum(component.num_gpus for component in plan.components)
    return replace(outcome, cost_per_step=cost * hours, gpu_hours_per_step=gpus * hours)


@dataclass(frozen=True)
class Compared:
    """One mode over its seeds."""

    mode: str
    outcomes: tuple[Outcome, ...]

    def mean(self, key: str) -> float:
        return statistics.fmean(getattr(each, key) for each in self.outcomes)

    def spread(self, key: str) -> float:
        """Half of the distance between the extremes, relative to the mean."""
        values = [getattr(each, key) for each in self.outcomes]
        mean = statistics.fmean(values)
        return (max(values) - min(values)) / 2 / mean if mean else 0.0

    def share(self, pool: str, key: str) -> float:
        return statistics.fmean(getattr(each.pools[pool], key) for each in self.outcomes)


def compare(
    case: Case, modes: Iterable[str], seeds: Iterable[int], *, steps: int, warm_up: int = 2,
    plan_of: Callable[[Case], Plan], say: Callable[[str], None] = lambda _: None,
) -> list[Compared]:  # fmt: skip
    """Every mode with every seed. The same seed draws the same plays in every mode."""
    found = []
    for mode in modes:
        changed = replace(case, config=replace(case.config, mode=mode))
        plan = plan_of(changed)
        outcomes = []
        for seed in seeds:
            outcome = with_cost(simulate(changed, steps=steps, warm_up=warm_up, seed=seed, plan=plan)[0], plan)
            outcomes.append(outcome)
            say(f"  {mode:<10} seed {seed}  {outcome.step_s:9.1f} s per step  ({outcome.cpu_s:.1f} s of CPU)")
        found.append(Compared(mode, tuple(outcomes)))
    return found
