"""Which act comes next: at random from a seed, within limits. Pure: it gets the time and what lives, and does nothing.

Roles come in shuffled rounds, and the kinds of each role too, so that a short run hits all of them. The same seed
makes the same choices as long as the run offers the same processes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rollart_hpc.chaos.acts import AGENT, KINDS_OF, RESTORING, Act, Kind, Victim

STABLE_S = 330.0  # a process that lived longer has its restarts back; a little more than the supervisor's
LONGEST_STOP_S = 10.0
LONGEST_WAIT_S = 120.0  # a process is stopped until it is replaced only if that happens within this time
SLOW_S = (4.0, 12.0)
DAMAGE_S = 3.0  # an engine that was killed is back by then, and finds damaged weights

_T = TypeVar("_T")


@dataclass(frozen=True)
class Limits:
    roles: tuple[str, ...]
    kinds: tuple[Kind, ...]
    silence_s: float  # after which the run counts a process as lost; after twice as long it is replaced
    restarts: int  # of each process, that may be used up
    at_once: int = 1  # victims that have not recovered
    whole_roles: bool = False  # may the last healthy worker of a role be hit?


@dataclass(frozen=True)
class Scene:
    """The run at the moment of the choice."""

    now: float
    victims: Sequence[Victim]
    hurt: Collection[str]  # names of processes that have not recovered
    checkpoint: int  # step of the newest one; -1 = none
    can_damage: bool  # is there a second good checkpoint?


class Chooser:
    def __init__(self, seed: int, limits: Limits) -> None:
        self.limits = limits
        self._random = random.Random(seed)
        self._roles: list[str] = []
        self._kinds: dict[str, list[Kind]] = {}
        self._ended: dict[str, list[float]] = {}  # by process: when it was ended
        self._restored_from = -2  # the newest checkpoint when the trainer or the controller was ended last

    def choose(self, scene: Scene) -> Act | None:
        """None: nothing may be hit now."""
        if len(scene.hurt) >= self.limits.at_once:
            return None
        for role in self._order():
            for kind in self._order_of(role):
                act = self._try(role, kind, scene)
                if act is not None:
                    self._roles.remove(role)
                    self._kinds[role].remove(kind)
                    return act
        return None

    def did(self, act: Act, scene: Scene) -> None:
        """The act was done."""
        if self._may_end(act):
            self._ended.setdefault(act.victim.name, []).append(scene.now)
            if act.victim.role in RESTORING:
                self._restored_from = scene.checkpoint

    def pause_s(self, every_s: float) -> float:
        return every_s * self._random.uniform(0.5, 1.5)

    # --- rounds ----------------------------------------------------------------------------------

    def _order(self) -> list[str]:
        """What is left of this round, then the others."""
        if not self._roles:
            self._roles = self._shuffled(self.limits.roles)
        rest = [role for role in self.limits.roles if role not in self._roles]
        self._roles += self._shuffled(rest) if rest else []
        return list(self._roles)

    def _order_of(self, role: str) -> list[Kind]:
        offered = [kind for kind in KINDS_OF[role] if kind in self.limits.kinds]
        left = self._kinds.get(role) or self._shuffled(offered)
        self._kinds[role] = left + self._shuffled([kind for kind in offered if kind not in left])
        return list(self._kinds[role])

    def _shuffled(self, items: Sequence[_T]) -> list[_T]:
        return self._random.sample(list(items), len(items))

    # --- limits ----------------------------------------------------------------------------------

    def _try(self, role: str, kind: Kind, scene: Scene) -> Act | None:
        healthy = [v for v in scene.victims if v.role == role and v.name not in scene.hurt]
        num_all = sum(v.role == role for v in scene.victims)
        if num_all > 1 and len(healthy) < 2 and not self.limits.whole_roles:
            return None
        acts = [self._shape(kind, victim) for victim in healthy]
        allowed = [act for act in acts if self._is_allowed(act, scene)]
        return self._random.choice(allowed) if allowed else None

    def _shape(self, kind: Kind, victim: Victim) -> Act:
        rng, silence_s = self._random, self.limits.silence_s
        short_s = rng.uniform(0.5, min(LONGEST_STOP_S, silence_s / 2))
        if kind is Kind.STOP:
            until_replaced = rng.random() < 0.5 and victim.role not in ("controller", AGENT)
            is_soon = 2 * silence_s <= LONGEST_WAIT_S
            return Act(kind, victim, 3 * silence_s if until_replaced and is_soon else short_s)
        if kind is Kind.SLOW:
            return Act(kind, victim, min(rng.uniform(*SLOW_S), silence_s))
        if kind is Kind.CORRUPT:
            return Act(kind, victim, DAMAGE_S if victim.role == "engine" else 0.0, point=rng.random())
        return Act(kind, victim, short_s if kind is Kind.CUT else 0.0)

    def _may_end(self, act: Act) -> bool:
        """A broken connection between ranks ends a trainer; a long stop has the process replaced."""
        is_long = act.kind is Kind.STOP and act.seconds > self.limits.silence_s
        return act.is_lethal or is_long or (act.kind is Kind.CUT and act.victim.role == "trainer")

    def _is_allowed(self, act: Act, scene: Scene) -> bool:
        victim = act.victim
        if act.kind is Kind.CORRUPT and victim.role == "trainer" and not scene.can_damage:
            return False
        if not self._may_end(act):
            return True
        if victim.role in RESTORING:
            return scene.checkpoint > self._restored_from
        recent = [when for when in self._ended.get(victim.name, ()) if scene.now - when < STABLE_S]
        return len(recent) < self.limits.restarts


def counts(acts: Sequence[Act]) -> Counter[tuple[str, str]]:
    """By role and kind."""
    return Counter((act.victim.role, act.kind.value) for act in acts)
