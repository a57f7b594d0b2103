"""Which pools serve the tasks with `affinity: auto`. Owns what turns of each task take, and the choice.

Every turn adds to the sums of its task; older turns count less with every step. After each step the choice is the map
from tasks to pools under which the busiest engine works the shortest time for these turns, by the roofline of its GPUs
(`estimate.pools`). A task with several pools has as many trajectories on each of their engines, because the router
counts trajectories: slow engines make it late. A choice stays until another map is clearly better for several steps,
and a trajectory stays where the choice was when it began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rollart_hpc.estimate.pools import EngineFigures
from rollart_hpc.estimate.roofline import turn_s
from rollart_hpc.flow.rules import FlowRules
from rollart_hpc.hardware import ANY

READY = 48.0  # turns of every task before the first choice
KEPT = 0.9  # of the sums after each step
GAIN = 0.05  # by which another map must be better
CONFIRMED = 3  # steps in a row in which it must be so
PAUSE = 5  # steps from one change to the next
MAX_NODES = 2000  # looks of one search; beyond, the best map found so far counts

Loads = dict[str, dict[str, float]]  # task -> pool -> seconds of one engine, if that pool alone serves the task
Choices = dict[str, str]  # task -> one of the values that `affinity` may have


@dataclass(slots=True)
class Usage:
    """Sums over the turns of a task, of which older ones count less."""

    turns: float = 0.0
    prompt: float = 0.0  # tokens, with those whose KV was kept
    prefilled: float = 0.0
    decoded: float = 0.0

    def fade(self) -> None:
        self.turns, self.prompt = KEPT * self.turns, KEPT * self.prompt
        self.prefilled, self.decoded = KEPT * self.prefilled, KEPT * self.decoded

    @property
    def reuse(self) -> float:
        """Share of the prompts that was not prefilled again."""
        return max(0.0, 1.0 - self.prefilled / self.prompt) if self.prompt else 0.0


class Why(NamedTuple):
    """The figures behind a choice: means per turn, and seconds of an engine by pool."""

    choice: str
    prompt: float
    prefilled: float
    decoded: float
    reuse: float
    turn_s: dict[str, float]


class Change(NamedTuple):
    task: str
    before: str
    after: str
    reason: str


@dataclass(frozen=True)
class Map:
    choices: Choices
    seconds: float  # of the busiest engine
    total_s: float  # of all engines

    @property
    def rank(self) -> tuple[float, float]:
        return self.seconds, self.total_s


class Affinity:
    def __init__(self, rules: FlowRules) -> None:
        self._rules = rules
        self.tasks = [name for name, task in rules.tasks.items() if task.auto and rules.figures]
        self.usage = {name: Usage() for name in rules.tasks} if self.tasks else {}
        self.choices: Choices = dict.fromkeys(self.tasks, ANY)
        self.turn_s: Loads = {}  # at the last look: of one turn
        self.has_chosen = False
        self._pools = {name: task.pools for name, task in rules.tasks.items()}
        self._wins = 0
        self._candidate: Choices = {}
        self._changed_at = 0

    def pools(self, task: str) -> tuple[str, ...]:
        """For trajectories that begin now; () = every pool."""
        return self._pools[task]

    def turn(self, task: str, prompt: int, prefilled: int, decoded: int) -> None:
        """A turn of training was generated."""
        if self.tasks:
            used = self.usage[task]
            used.turns += 1
            used.prompt += prompt
            used.prefilled += prefilled
            used.decoded += decoded

    # --- choosing ----------------------------------------------------------------------------

    def look(self, step: int, engines: Mapping[str, int], tasks: list[str]) -> list[Change]:
        """After a step. `engines`: how many each pool has; `tasks`: those that are trained on."""
        if not self.tasks:
            return []
        alive = {pool: num for pool, num in engines.items() if num and pool in self._rules.figures}
        ready = [task for task in tasks if not self._rules.tasks[task].split]
        changes = []
        if alive and ready and all(self.usage[task].turns >= READY for task in ready):
            used = {task: self.usage[task] for task in ready}
            loads = loads_of(self._rules.figures, used, alive)
            self.turn_s = {task: {p: s / used[task].turns for p, s in load.items()} for task, load in loads.items()}
            changes = self._compare(step, loads, alive)
        for each in self.usage.values():
            each.fade()
        return changes

    def _compare(self, step: int, loads: Loads, alive: Mapping[str, int]) -> list[Change]:
        options = {task: self._options(task) for task in loads}
        current = rated({task: self.choices.get(task, "") for task in loads}, options, loads, alive)
        best = best_map(options, loads, alive, current)
        if self.has_chosen:
            is_better = best.seconds < (1 - GAIN) * current.seconds
            self._wins = self._wins + 1 if is_better and best.choices == self._candidate else int(is_better)
            self._candidate = best.choices
            if self._wins < CONFIRMED or step < self._changed_at + PAUSE:
                return []
        self.has_chosen, self._wins, self._changed_at = True, 0, step
        return list(self._take(best, current))

    def _take(self, best: Map, current: Map) -> Iterator[Change]:
        saved = 1 - best.seconds / current.seconds if current.seconds else 0.0
        for task in self.tasks:
            before, after = self.choices[task], best.choices.get(task, self.choices[task])
            self.choices[task] = after
            self._pools[task] = self._rules.auto_options[after]
            if before != after:
                yield Change(task, before, after, f"{self.reason(task)}; the busiest engine works {saved:.0%} less")

    def why(self, task: str) -> Why:
        used, turns = self.usage[task], max(self.usage[task].turns, 1e-9)
        return Why(
            self.choices[task], used.prompt / turns, used.prefilled / turns, used.decoded / turns, used.reuse,
            self.turn_s.get(task, {}),
        )  # fmt: skip

    def _options(self, task: str) -> dict[str, tuple[str, ...]]:
        """What may be chosen: for a task that says its pools, only these."""
        return self._rules.auto_options if task in self.choices else {"": self._rules.tasks[task].pools}

    def reason(self, task: str) -> str:
        """The figures behind the choice of a task."""
        why = self.why(task)
        costs = ", ".join(f"{1000 * seconds:.3g} ms in {pool}" for pool, seconds in why.turn_s.items())
        return (
            f"a turn has {why.prompt:.0f} prompt tokens, of which {why.prefilled:.0f} are prefilled ({why.reuse:.0%} "
            f"prefix reuse), and {why.decoded:.0f} answer tokens: {costs} of an engine"
        )

    # --- snapshot ----------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        return {"choices": dict(self.choices), "has_chosen": self.has_chosen, "changed_at": self._changed_at}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take over choices that this run still allows."""
        self.has_chosen, self._changed_at = bool(saved.get("has_chosen")), int(saved.get("changed_at", 0))
        for task, choice in saved.get("choices", {}).items():
            if task in self.choices and choice in self._rules.auto_options:
                self.choices[task] = choice
                self._pools[task] = self._rules.auto_options[choice]


# --- the model -----------------------------------------------------------------------------------


def loads_of(figures: Mapping[str, EngineFigures], usage: Mapping[str, Usage], alive: Mapping[str, int]) -> Loads:
    return {task: {pool: _load_s(figures[pool], used) for pool in alive} for task, used in usage.items()}


def _load_s(figures: EngineFigures, used: Usage) -> float:
    prompt, new, answer = (x / used.turns for x in (used.prompt, used.prefilled, used.decoded))
    prompt = max(prompt, new)  # KV that was rebuilt under new weights counts as prefilled
    decoding = figures.decoding(prompt + answer)
    prefill_s, decode_s = turn_s(figures.pace, prompt, prompt - new, answer, decoding)
    return used.turns * (prefill_s + decode_s)


def share_s(load: Mapping[str, float], pools: tuple[str, ...], alive: Mapping[str, int]) -> dict[str, float]:
    """Seconds that each engine works for a task, if these pools serve it. Without a living one of them all do."""
    served_by = [pool for pool in pools if pool in alive] or list(alive)
    engines = sum(alive[pool] for pool in served_by)
    return {pool: load[pool] / engines for pool in served_by}


def rated(
    choices: Choices, options: Mapping[str, Mapping[str, tuple[str, ...]]], loads: Loads, alive: Mapping[str, int]
) -> Map:
    busy = dict.fromkeys(alive, 0.0)
    for task, choice in choices.items():
        for pool, seconds in share_s(loads[task], options[task][choice], alive).items():
            busy[pool] += seconds
    return Map(choices, max(busy.values()), sum(busy[pool] * alive[pool] for pool in alive))


def best_map(
    options: Mapping[str, Mapping[str, tuple[str, ...]]], loads: Loads, alive: Mapping[str, int], current: Map
) -> Map:
    """The map of the lowest rank: depth first, the longest tasks first, without branches that can't be better."""
    shares = {
        task: {name: share_s(loads[task], pools, alive) for name, pools in options[task].items()} for task in loads
    }
    order = sorted(loads, key=lambda task: -min(max(share.values()) for share in shares[task].values()))
    best, nodes = current, 0

    def descend(depth: int, chosen: Choices, busy: dict[str, float]) -> None:
        nonlocal best, nodes
        nodes += 1
        top = max(busy.values())
        if nodes > MAX_NODES or top > best.seconds * (1 + 1e-9):
            return
        if depth == len(order):
            found = Map(dict(chosen), top, sum(busy[pool] * alive[pool] for pool in alive))
            best = min(best, found, key=lambda each: each.rank)
            return
        task = order[depth]
        for name, share in sorted(shares[task].items(), key=lambda item: max(item[1].values())):
            more = {pool: seconds + share.get(pool, 0.0) for pool, seconds in busy.items()}
            descend(depth + 1, {**chosen, task: name}, more)

    descend(0, {}, dict.fromkeys(alive, 0.0))
    return best
