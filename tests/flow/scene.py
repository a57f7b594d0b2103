"""A core on a stage, for tests by example."""

from __future__ import annotations

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.rules import FlowRules, TaskRules
from rollart_hpc.types import WeightsId


class Scene:
    """A core with everyone aboard and version 0 installed; `do` feeds events and keeps the commands."""

    def __init__(self, engines=(("engine-c", "compute"), ("engine-b", "bandwidth")), env_slots=100, **rules):
        tasks = rules.pop("tasks", {"a": TaskRules(1.0, ("compute",))})
        defaults = {"steps": 3, "groups_per_step": 2, "group_size": 2, "alpha": 1, "direct": True}
        defaults |= {"probe_s": 1e6, "play_s": 1e6}  # no task comes back, and environments may be silent
        self.core = Core(FlowRules(tasks=tasks, **{**defaults, **rules}))
        self.out: list[ev.Command] = []
        self.do(ev.Joined("env", "env", capacity=env_slots), ev.Joined("reward", "reward", capacity=100))
        self.do(*(ev.Joined(name, "engine", pool=pool, capacity=100) for name, pool in engines))
        self.do(ev.Joined("trainer", "trainer", version=0))
        self.publish(0)

    def do(self, *events: ev.Event) -> list[ev.Command]:
        new = [command for event in events for command in self.core.settle(event)]
        self.out += new
        return new

    def publish(self, version: int, attempt: int = 1) -> None:
        weights = WeightsId(attempt, version)
        self.do(ev.Published(weights))
        for engine in list(self.core.router.engines):
            self.do(ev.Installed(engine, weights))

    def take(self, kind: type) -> list:
        found = [c for c in self.out if isinstance(c, kind)]
        self.out = [c for c in self.out if not isinstance(c, kind)]
        return found

    def turn(self, play: ev.Play, version: int = 0, turn: int = 0) -> ev.Generate:
        """From a wanted turn to the answer in the environment's hands; returns the request."""
        commands = self.do(ev.TurnWanted(play.trajectory, play.issue, turn))
        (request,) = [c for c in commands if isinstance(c, ev.Generate)]
        self.do(ev.Generated(request.request, version, version))
        return request

    def finish(self, play: ev.Play, version: int = 0, reward: float = 1.0) -> None:
        self.turn(play, version)
        self.do(
            ev.Ended(play.trajectory, play.issue, None, 1), ev.Scored(play.trajectory, play.issue, reward, reward > 0)
        )

    def groups(self) -> list[list[ev.Play]]:
        plays: dict[str, list[ev.Play]] = {}
        for play in self.take(ev.Play):
            plays.setdefault(play.trajectory.rsplit(".", 1)[0], []).append(play)
        return list(plays.values())

    def check_waits_for(self, weights: WeightsId, engine: str) -> None:
        """The next trajectory's first turn is not generated before `engine` has these weights."""
        play = self.take(ev.Play)[0]
        asked = self.do(ev.TurnWanted(play.trajectory, 0, 0), ev.Published(weights))
        assert not [c for c in asked if isinstance(c, ev.Generate)]
        assert [c for c in self.do(ev.Installed(engine, weights)) if isinstance(c, ev.Generate)]
