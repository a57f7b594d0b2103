"""What chaos sees of a run: its processes, its strength, and whether it has recovered. Only reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rollart_hpc.chaos.acts import AGENT, Act, Victim
from rollart_hpc.launch.launcher import Launcher
from rollart_hpc.launch.ownership import OwnedProcess, read_ownership
from rollart_hpc.launch.plan_file import read_plan
from rollart_hpc.launch.status import RunStatus
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState

SETTLE_S = 2.0  # after an act that a process may survive: the status is a second old, and the process may yet end


@dataclass(frozen=True)
class Sight:
    """The run at one moment."""

    status: RunStatus
    victims: list[Victim]
    is_strong: bool  # every process of the plan is there

    @property
    def progress(self) -> tuple[int, int]:
        return self.status.attempt, self.status.progress

    def joined(self, role: str) -> int:
        return self.status.workers[role].joined if role in self.status.workers else 0

    def incarnations(self, host: str = "", name: str = "") -> dict[str, str]:
        """Of the processes of a host, or of one process."""
        there = (v for v in self.victims if v.incarnation and (v.name == name or (host and v.host == host)))
        return {victim.name: victim.incarnation for victim in there}


class Watched:
    def __init__(self, run: RunDir, launcher: Launcher) -> None:
        self.run = run
        self._launcher, self._watch = launcher, launcher.watch(run)
        self._plan = read_plan(run)
        self._wanted = Counter(str(proc.role) for proc in self._plan.procs)

    def look(self) -> Sight:
        status = self._watch.look()
        owner = read_ownership(self.run)
        procs = owner.procs if owner is not None and owner.state is RunState.RUNNING else {}
        alive = {role: workers.alive for role, workers in status.workers.items()}
        is_strong = status.state is RunState.RUNNING and all(
            alive.get(role, 0) >= count for role, count in self._wanted.items()
        )
        return Sight(status, self._victims(procs), is_strong)

    def is_over(self, sight: Sight) -> bool:
        return sight.status.state.is_over and self._watch.is_over(sight.status)

    def _victims(self, procs: dict[str, OwnedProcess]) -> list[Victim]:
        known = {proc.name: proc for proc in self._plan.procs}
        found = [
            Victim(name, str(known[name].role), known[name].node, owned.host, owned.pid, owned.incarnation)
            for name, owned in procs.items()
            if name in known and owned.pid
        ]
        if self._launcher.is_cluster:
            hosts = sorted({victim.host for victim in found if victim.host})
            found += [Victim(f"{AGENT}-{host}", AGENT, "", host, 0, "") for host in hosts]
        return found


@dataclass
class Wound:
    """An act whose end is awaited."""

    number: int
    act: Act
    at_s: float
    before: Sight
    lost: dict[str, str] = field(init=False)  # incarnations that must be replaced, by process

    def __post_init__(self) -> None:
        victim = self.act.victim
        host = victim.host if victim.role == AGENT else ""
        self.lost = self.before.incarnations(host, victim.name)

    def is_healed(self, now: float, sight: Sight) -> bool:
        """The act is over, the run has all its processes again, and has gone on since."""
        is_replaced = self._is_replaced(sight)
        if not is_replaced and (self.act.is_lethal or now < self.at_s + self.act.seconds + SETTLE_S):
            return False
        return sight.is_strong and sight.progress != self.before.progress

    def _is_replaced(self, sight: Sight) -> bool:
        there = sight.incarnations(self.act.victim.host, self.act.victim.name)
        role = self.act.victim.role
        has_joined = sight.status.attempt > self.before.status.attempt or any(
            sight.joined(other) > self.before.joined(other) for other in self._roles(role)
        )
        return has_joined and all(name in there and there[name] != old for name, old in self.lost.items())

    def _roles(self, role: str) -> set[str]:
        if role != AGENT:
            return {role}
        return {victim.role for victim in self.before.victims if victim.name in self.lost}
