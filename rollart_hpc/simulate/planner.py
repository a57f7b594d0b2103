"""A better run for a site: searched by simulation, then confirmed with several seeds. Owns the order and the time.

    rate      the run as it is                      one seed, few steps
    search    moves from the best so far            the same plays for all, in as many processes as there are CPUs
    confirm   the run and the best three            every seed; the winner is the best over all seeds
    shake     the run and the winner                other prefix reuse, other lengths of answers

A third of the time is kept for the last two.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Any

from rollart_hpc.config.classes import homes_of
from rollart_hpc.errors import ConfigError, RollartError, UserError
from rollart_hpc.launch.fit import fit_of
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.simulate.build import Case
from rollart_hpc.simulate.figures import Outcome, simulate, with_cost
from rollart_hpc.simulate.knobs import find_illegal, fitted_to, moves, value_of, with_changes
from rollart_hpc.simulate.laws import Law
from rollart_hpc.simulate.search import Candidate, Found, Rating, search
from rollart_hpc.simulate.workload import TaskProfile, Workload

SEARCH_STEPS, WARM_UP = 3, 2
KEPT_SHARE = 0.35  # of the time, for confirming and shaking
CONFIRMED = 3  # candidates besides the run itself
GOALS = {
    "step": lambda outcome: outcome.step_s,
    "cost": lambda outcome: outcome.cost_per_step,
    "tokens": lambda outcome: -outcome.trained_tokens_per_s,
}
SHAKES: dict[str, Callable[[TaskProfile], TaskProfile]] = {
    "no prefix reuse": lambda task: replace(task, reuse=0.0),
    "full prefix reuse": lambda task: replace(task, reuse=1.0),
    "answers half as long": lambda task: replace(task, answer=_scaled(task.answer, 0.5)),
    "answers twice as long": lambda task: replace(task, answer=_scaled(task.answer, 2.0)),
}


@dataclass(frozen=True)
class Wish:
    goal: str
    vary: tuple[str, ...]
    budget: dict[str, int]  # GPUs by class
    seconds: float
    seeds: int = 3
    steps: int = 6
    processes: int = 1


@dataclass(frozen=True)
class Side:
    """The run itself, or the winner: one outcome per seed."""

    changes: Candidate
    outcomes: tuple[Outcome, ...]

    def mean(self, key: str) -> float:
        return statistics.fmean(getattr(each, key) for each in self.outcomes)


@dataclass
class Advice:
    before: Side
    after: Side  # `before` again if nothing better was found
    gain: float  # of the goal: 1.2 is 1.2 times as good
    spread: float  # half of the distance between the gains of the seeds
    shaken: dict[str, float | None]  # gain under other assumptions; None: not simulated, or impossible
    found: Found
    seconds: float
    fitted: Candidate = field(default_factory=dict)  # what the GPU budget alone asked for


@dataclass(frozen=True)
class Job:
    """One simulation, sent to a process."""

    case: Case
    seed: int
    steps: int


def advise(case: Case, wish: Wish, say: Callable[[str], None] = lambda _: None) -> Advice:
    began_s = time.monotonic()
    start = _start(case, wish)
    with ProcessPoolExecutor(wish.processes, mp_context=get_context("fork")) as pool:
        planner = _Planner(case, wish, pool, began_s, say)
        return planner.advise(start)


def _start(case: Case, wish: Wish) -> Candidate:
    """The run itself, within the budget. Raises if even the smallest change does not bring it there."""
    homes = homes_of(case.config, case.site)
    changes = fitted_to(case.config, homes, wish.budget)
    problem = find_illegal(with_changes(case.config, changes), homes, wish.budget)
    ranks = changes.get("trainer.ranks", case.config.trainer.ranks)
    if problem or ranks < 1:
        listed = ", ".join(f"{name}={count}" for name, count in wish.budget.items())
        raise UserError(f"the run does not fit into the GPUs {listed}: {problem or 'none is left for the trainer'}",
                        "give more with --gpus CLASS=N")  # fmt: skip
    return changes


class _Planner:
    def __init__(
        self, case: Case, wish: Wish, pool: ProcessPoolExecutor, began_s: float, say: Callable[[str], None]
    ) -> None:
        self._case, self._wish, self._pool, self._began_s, self._say = case, wish, pool, began_s, say
        self._slowest_s = 0.0  # of the batches so far

    def advise(self, start: Candidate) -> Advice:
        wish = self._wish
        first = self._first(start)
        found = search(start, self._moves, self._rate, self._has_time, wish.processes, first, self._tidy)
        sides = self._confirm([start, *(c for c, r in found.rated if r.worth < first.worth)][: 1 + CONFIRMED])
        before, after = sides[0], min(sides, key=lambda side: self._worth(side.outcomes))
        gains = [self._gain(a, b) for a, b in zip(before.outcomes, after.outcomes, strict=True)]
        shaken = self._shake(before.changes, after.changes) if after is not before else {}
        return Advice(
            before, after, self._gain_of(before, after), (max(gains) - min(gains)) / 2, shaken, found,
            time.monotonic() - self._began_s, start,
        )  # fmt: skip

    def _first(self, start: Candidate) -> Rating:
        [result] = self._simulate([self._job(start, self._case, SEARCH_STEPS)])
        if isinstance(result, RollartError):
            raise result
        if self._wish.goal == "cost" and not result.cost_per_step:
            raise UserError(
                "--optimize cost: the classes of the site have no cost", "set cost of each class (per GPU-hour)"
            )
        needed = self._slowest_s * 4
        if self._wish.seconds < needed:
            raise UserError(
                f"--budget {self._wish.seconds:g}s is too short: one simulation took {self._slowest_s:.0f} s",
                f"use --budget {2 * needed:.0f}s or more",
            )
        return self._rating(result)

    # --- time --------------------------------------------------------------------------------

    def _left_s(self) -> float:
        return self._began_s + self._wish.seconds - time.monotonic()

    def _has_time(self) -> bool:
        return self._left_s() > max(KEPT_SHARE * self._wish.seconds, 1.5 * self._slowest_s)

    def _seconds_for(self, simulations: int, each_s: float) -> float:
        return -(-simulations // self._wish.processes) * each_s

    # --- search ------------------------------------------------------------------------------

    def _moves(self, candidate: Candidate) -> Any:
        return moves(with_changes(self._case.config, candidate), self._case.site, self._wish.budget, self._wish.vary)

    def _tidy(self, candidate: Candidate) -> Candidate:
        return {key: value for key, value in candidate.items() if value != value_of(self._case.config, key)}

    def _rate(self, candidates: Sequence[Candidate]) -> list[Rating | None]:
        results = self._simulate([self._job(each, self._case, SEARCH_STEPS) for each in candidates])
        rated: list[Rating | None] = []
        for candidate, result in zip(candidates, results, strict=True):
            if isinstance(result, RollartError):
                self._say(f"  impossible  {_shown(candidate)}: {result.what.splitlines()[-1].strip(' -')}")
                rated.append(None)
            else:
                self._say(f"  {result.step_s:8.1f} s per step  {_shown(candidate)}")
                rated.append(self._rating(result))
        return rated

    def _rating(self, outcome: Outcome) -> Rating:
        return Rating(GOALS[self._wish.goal](outcome), outcome.bound, outcome)

    # --- the end -----------------------------------------------------------------------------

    def _confirm(self, candidates: list[Candidate]) -> list[Side]:
        """Seed by seed, so that an early end of the time leaves complete sides. With little time only the best."""
        each_s = self._slowest_s * (self._wish.steps + WARM_UP) / (SEARCH_STEPS + WARM_UP)
        while len(candidates) > 2 and self._wish.seeds * self._seconds_for(len(candidates), each_s) > self._left_s():
            candidates = candidates[:-1]
        base = self._case.config.seed
        outcomes: list[list[Outcome]] = [[] for _ in candidates]
        for seed in range(base, base + self._wish.seeds):
            if outcomes[0] and self._left_s() < self._seconds_for(len(candidates), each_s):
                break
            jobs = [self._job(each, self._case, self._wish.steps, seed) for each in candidates]
            for mine, result in zip(outcomes, self._simulate(jobs), strict=True):
                if isinstance(result, RollartError):
                    raise result
                mine.append(result)
        return [Side(c, tuple(mine)) for c, mine in zip(candidates, outcomes, strict=True)]

    def _shake(self, before: Candidate, after: Candidate) -> dict[str, float | None]:
        shaken: dict[str, float | None] = {}
        for name, change in SHAKES.items():
            if self._left_s() < self._seconds_for(2, self._slowest_s):
                shaken[name] = None
                continue
            case = replace(self._case, workload=_changed(self._case.workload, change))
            results = self._simulate([self._job(each, case, SEARCH_STEPS) for each in (before, after)])
            a, b = (None if isinstance(result, RollartError) else result for result in results)
            shaken[name] = self._gain(a, b) if a is not None and b is not None else None
        return shaken

    def _worth(self, outcomes: Sequence[Outcome]) -> float:
        return float(statistics.fmean(GOALS[self._wish.goal](each) for each in outcomes))

    def _gain(self, before: Outcome, after: Outcome) -> float:
        return _ratio(self._worth([before]), self._worth([after]))

    def _gain_of(self, before: Side, after: Side) -> float:
        return _ratio(self._worth(before.outcomes), self._worth(after.outcomes))

    # --- simulations -------------------------------------------------------------------------

    def _job(self, candidate: Candidate, case: Case, steps: int, seed: int | None = None) -> Job:
        config = with_changes(case.config, candidate)
        return Job(replace(case, config=config), case.config.seed if seed is None else seed, steps)

    def _simulate(self, jobs: list[Job]) -> list[Outcome | RollartError]:
        began_s = time.monotonic()
        results = list(self._pool.map(run_job, jobs))
        rounds = -(-len(jobs) // self._wish.processes)
        self._slowest_s = max(self._slowest_s, (time.monotonic() - began_s) / rounds)
        return results


def run_job(job: Job) -> Outcome | RollartError:
    """In a process of its own. A run that can't be is a result too."""
    case = job.case
    try:
        plan = make_plan(case.config, case.site)
        fit_of(case.config, case.site, plan, case.shape).need("it does not fit")
        outcome, _ = simulate(case, steps=job.steps, warm_up=WARM_UP, seed=job.seed, plan=plan)
        return with_cost(outcome, plan)
    except ConfigError as error:  # its constructor has other arguments, so it can't be sent as it is
        return UserError(error.problems[0], error.fix)
    except RollartError as error:
        return error


def _changed(workload: Workload, change: Callable[[TaskProfile], TaskProfile]) -> Workload:
    return replace(workload, tasks={name: change(task) for name, task in workload.tasks.items()})


def _scaled(law: Law, factor: float) -> Law:
    table = tuple(factor * value for value in law.table)
    return replace(law, mean=factor * law.mean, low=factor * law.low, high=factor * law.high, table=table)


def _ratio(before: float, after: float) -> float:
    """How many times as good. Figures of which more is better are negative."""
    return after / before if before < 0 else before / after


def _shown(candidate: Candidate) -> str:
    return " ".join(f"{key}={as_text(value)}" for key, value in candidate.items()) or "the run itself"


def as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
