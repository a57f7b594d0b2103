"""Choices of chaos: from a seed, all roles and kinds in turn, and never beyond the limits."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.chaos.acts import AGENT, KINDS_OF, RESTORING, ROLES, Act, Kind, Victim
from rollart_hpc.chaos.choose import STABLE_S, Chooser, Limits, Scene

COUNTS = {"controller": 1, "trainer": 1, "engine": 3, "env": 2, "reward": 2, "relay": 2, AGENT: 2}
VICTIMS = [Victim(f"{role}-{i}", role, "n", "h", 1, "x") for role, count in COUNTS.items() for i in range(count)]


def limits(**changed: object) -> Limits:
    return Limits(**{"roles": ROLES, "kinds": tuple(Kind), "silence_s": 20.0, "restarts": 4, **changed})  # type: ignore[arg-type]


def scene(now: float = 0.0, hurt: tuple[str, ...] = (), checkpoint: int = 1, can_damage: bool = True) -> Scene:
    return Scene(now, VICTIMS, hurt, checkpoint, can_damage)


def choices(seed: int, count: int, given: Limits, every_s: float = 400.0) -> list[Act]:
    """In a run that has made a checkpoint before every act."""
    chooser, chosen = Chooser(seed, given), []
    for number in range(count):
        now = scene(number * every_s, checkpoint=number)
        act = chooser.choose(now)
        assert act is not None
        chooser.did(act, now)
        chosen.append(act)
    return chosen


def test_a_seed_decides():
    assert choices(5, 30, limits()) == choices(5, 30, limits()) != choices(6, 30, limits())


@given(st.integers(0, 1000))
def test_every_role_is_hit_once_per_round_and_by_every_kind_in_turn(seed):
    chosen = choices(seed, 5 * len(ROLES), limits())
    for start in range(0, len(chosen), len(ROLES)):
        assert {act.victim.role for act in chosen[start : start + len(ROLES)]} == set(ROLES)
    for role, kinds in KINDS_OF.items():
        done = [act.kind for act in chosen if act.victim.role == role]
        assert set(done[: len(kinds)]) == set(kinds)


def test_only_the_roles_and_kinds_asked_for():
    chosen = choices(1, 20, limits(roles=("env", "relay"), kinds=(Kind.KILL, Kind.SLOW)))
    assert {act.victim.role for act in chosen} == {"env", "relay"} and {act.kind for act in chosen} == {"kill", "slow"}


def test_never_more_victims_at_once_and_never_the_last_healthy_worker_of_a_role():
    chooser = Chooser(1, limits(roles=("env",), at_once=3))
    assert chooser.choose(scene(hurt=("env-0",))) is None
    assert chooser.choose(scene(hurt=("reward-0", "relay-0", "engine-1"))) is None
    asked = Chooser(1, limits(roles=("env",), at_once=3, whole_roles=True)).choose(scene(hurt=("env-0",)))
    assert asked is not None and asked.victim.name == "env-1"


@given(st.integers(0, 1000))
def test_trainer_and_controller_are_ended_only_after_a_new_checkpoint(seed):
    chooser = Chooser(seed, limits(roles=RESTORING, kinds=(Kind.KILL,)))
    first = chooser.choose(scene(checkpoint=3))
    assert first is not None
    chooser.did(first, scene(checkpoint=3))
    assert chooser.choose(scene(checkpoint=3)) is None
    assert chooser.choose(scene(checkpoint=4)) is not None


def test_restarts_are_never_used_up_but_come_back_with_time():
    chooser = Chooser(1, limits(roles=("reward",), kinds=(Kind.KILL,), restarts=2))
    done: Counter[str] = Counter()
    while (act := chooser.choose(scene())) is not None:
        chooser.did(act, scene())
        done[act.victim.name] += 1
    assert done == {"reward-0": 2, "reward-1": 2}
    assert chooser.choose(scene(now=STABLE_S)) is not None


@given(st.integers(0, 1000))
def test_the_controller_is_never_silent_for_long_and_a_last_good_checkpoint_stays(seed):
    for act in choices(seed, 40, limits()):
        if act.victim.role in ("controller", AGENT):
            assert act.seconds < 20.0
    only = limits(roles=("trainer",), kinds=(Kind.CORRUPT,))
    assert Chooser(seed, only).choose(scene(can_damage=False)) is None
