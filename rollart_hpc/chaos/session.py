"""The loop of chaos: wait until the run is strong, hit it, wait until it has recovered. Owns chaos.jsonl."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from rollart_hpc.chaos import acts
from rollart_hpc.chaos.acts import Act, Kind
from rollart_hpc.chaos.choose import Chooser, Limits, Scene
from rollart_hpc.chaos.crew import Sight, Watched, Wound
from rollart_hpc.chaos.damage import Damage
from rollart_hpc.chaos.hands import Hands, Refusal
from rollart_hpc.chaos.verdict import Healing, Summary, steps_of, summarize
from rollart_hpc.errors import UserError, command_line
from rollart_hpc.files import append_line
from rollart_hpc.launch.launcher import Launcher
from rollart_hpc.rundir import RunDir

LOOK_EVERY_S = 0.25
REFUSED_PAUSE_S = 1.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    """What the user asked for."""

    seed: int
    for_s: float
    every_s: float
    patience_s: float
    acts: int = 0  # end after so many; 0 = when the time is over


class Chaos:
    def __init__(self, run: RunDir, launcher: Launcher, limits: Limits, wish: Wish, say: Say) -> None:
        self._run, self._wish, self._say = run, wish, say
        self._watched = Watched(run, launcher)
        self._hands, self._damage = Hands(run, launcher), Damage(run)
        self._chooser = Chooser(wish.seed, limits)
        self._wounds: list[Wound] = []
        self._healings: list[Healing] = []
        self._refused: Counter[str] = Counter()
        self._began_s = time.monotonic()
        self._steps_before = steps_of(run)
        self._is_interrupted = False

    def carry_out(self) -> Summary:
        """Until the time is over and the run has recovered, or the run is over. Leaves no process stopped."""
        sight = self._watched.look()
        if sight.status.state.is_over:
            fix = f"see how it ended: {command_line('status', self._run.path)}"
            raise UserError(f"{self._run.path} is not running: it is {sight.status.state}", fix)
        limits = self._chooser.limits
        self._write(acts.Began(time.time(), self._wish.seed, self._wish.for_s, [*limits.roles], [*limits.kinds]))
        try:
            self._until_strong()
            self._hit_until_the_end()
        except KeyboardInterrupt:
            self._is_interrupted = True
            self._say("interrupted: letting go of every process")
        finally:
            self._hands.close()
        return self._finish()

    # --- the loop --------------------------------------------------------------------------------

    def _until_strong(self) -> None:
        """The run starts: nothing is hit before all its processes have joined."""
        deadline_s = time.monotonic() + self._wish.patience_s
        sight = self._watched.look()
        while not sight.is_strong and not self._watched.is_over(sight):
            if time.monotonic() > deadline_s:
                missing = f"not all processes of the run joined within {self._wish.patience_s:g} s"
                raise UserError(missing, f"see what is missing: {command_line('status', self._run.path)}")
            time.sleep(LOOK_EVERY_S)
            sight = self._watched.look()
        self._began_s = time.monotonic()

    def _hit_until_the_end(self) -> None:
        end_s = self._began_s + self._wish.for_s
        next_s = self._began_s
        while True:
            now, sight = time.monotonic(), self._watched.look()
            if self._watched.is_over(sight) or self._is_given_up(now):
                return
            if self._heal(now, sight):
                next_s = max(next_s, now + self._chooser.pause_s(self._wish.every_s))
            is_due = now < end_s and not self._has_enough()
            if not is_due and not self._wounds:
                return
            if is_due and next_s <= now and (sight.is_strong or self._wounds):
                next_s = now + self._hit(now, sight)
            time.sleep(LOOK_EVERY_S)

    def _has_enough(self) -> bool:
        return 0 < self._wish.acts <= len(self._healings) + len(self._wounds)

    def _hit(self, now: float, sight: Sight) -> float:
        """Do one act, if there is one. Returns the pause until the next."""
        scene = self._scene(now, sight)
        act = self._chooser.choose(scene)
        if act is None:
            return LOOK_EVERY_S
        try:
            damaged = self._damage.do(act.point) if self._hits_checkpoint(act) else ""
            detail = ", ".join(filter(None, [damaged, self._hands.do(act)]))
        except Refusal as error:
            self._refuse(act, error)
            return REFUSED_PAUSE_S
        self._chooser.did(act, scene)
        number = len(self._healings) + len(self._wounds) + 1
        self._wounds.append(Wound(number, act, now, sight))
        victim = act.victim
        place = victim.name, victim.host, victim.pid
        self._write(acts.Did(time.time(), number, act.kind, victim.role, *place, round(act.seconds, 2), detail))
        self._say(f"{number}: {act} ({detail})")
        return self._chooser.pause_s(self._wish.every_s)

    def _scene(self, now: float, sight: Sight) -> Scene:
        newest = self._run.newest_checkpoint()
        hurt = [wound.act.victim.name for wound in self._wounds]
        return Scene(now, sight.victims, hurt, newest.step if newest else -1, self._damage.can_do())

    @staticmethod
    def _hits_checkpoint(act: Act) -> bool:
        return act.kind is Kind.CORRUPT and act.victim.role == "trainer"

    def _refuse(self, act: Act, error: Refusal) -> None:
        if not self._refused[error.what]:
            self._say(f"not done: {act}: {error.what}")
        self._refused[error.what] += 1
        victim = act.victim
        self._write(acts.Refused(time.time(), act.kind, victim.role, victim.name, error.what))

    def _heal(self, now: float, sight: Sight) -> bool:
        """True if the run has recovered from something."""
        healed = [wound for wound in self._wounds if wound.is_healed(now, sight)]
        for wound in healed:
            self._wounds.remove(wound)
            self._healings.append(Healing(wound.act, now - wound.at_s))
            self._write(acts.Recovered(time.time(), wound.number, round(now - wound.at_s, 2), sight.status.step))
            self._say(f"{wound.number}: recovered after {now - wound.at_s:.1f} s, step {sight.status.step}")
        return bool(healed)

    def _is_given_up(self, now: float) -> bool:
        late = [wound for wound in self._wounds if now > wound.at_s + wound.act.seconds + self._wish.patience_s]
        for wound in late:
            self._say(f"{wound.number}: not recovered within {self._wish.patience_s:g} s")
        return bool(late)

    # --- the end ---------------------------------------------------------------------------------

    def _finish(self) -> Summary:
        sight = self._watched.look()
        healings = [*self._healings, *(Healing(wound.act, None) for wound in self._wounds)]
        lasted_s = time.monotonic() - self._began_s
        done = self._run, self._wish.seed, lasted_s, sight, healings, dict(self._refused), self._steps_before
        summary = summarize(*done, is_interrupted=self._is_interrupted)
        self._write(acts.Ended(time.time(), summary.is_ok, summary.problems))
        return summary

    def _write(self, line: acts.Record) -> None:
        append_line(self._run.chaos, msgspec.json.encode(line).decode())


def preview(run: RunDir, launcher: Launcher, limits: Limits, wish: Wish) -> list[Act]:
    """What the seed would choose, if every act succeeded and the run recovered from it at once."""
    chooser, victims = Chooser(wish.seed, limits), Watched(run, launcher).look().victims
    now, chosen = 0.0, list[Act]()
    while now < wish.for_s and not 0 < wish.acts <= len(chosen):
        scene = Scene(now, victims, (), len(chosen), True)
        act = chooser.choose(scene)
        if act is None:
            break
        chooser.did(act, scene)
        chosen.append(act)
        now += act.seconds + chooser.pause_s(wish.every_s)
    return chosen
