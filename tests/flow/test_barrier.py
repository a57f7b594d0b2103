"""The barrier of mode one_off: batches are generated one after another, and weights are installed in between."""

from __future__ import annotations

from rollart_hpc.config.modes import preset_of
from rollart_hpc.flow import events as ev
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.rules import FlowRules, TaskRules
from rollart_hpc.simulate.world import Durations, Member, World
from rollart_hpc.types import WeightsId
from tests.flow.scene import Scene

ONE_OFF = {**preset_of("one_off").forced, **preset_of("one_off").switches}


def scene(**rules) -> Scene:
    return Scene(engines=(("e", "compute"),), **{**ONE_OFF, "steps": 4, **rules})


def finish(stage: Scene, groups: list[list[ev.Play]], version: int) -> None:
    for group in groups:
        for play in group:
            stage.finish(play, version)


def test_the_first_batch_is_generated_alone():
    stage = scene()
    first = stage.groups()
    assert len(first) == 2
    finish(stage, first[:1], 0)
    assert not stage.groups()
    finish(stage, first[1:], 0)
    assert len(stage.groups()) == 2


def test_the_next_batch_waits_for_the_trainer_and_for_the_whole_batch_before():
    stage = scene()
    stage.do(ev.BatchWanted(0))
    finish(stage, stage.groups(), 0)
    second = stage.groups()
    finish(stage, second, 0)
    assert not stage.groups(), "the trainer has not committed"
    stage.do(ev.Committed(1), ev.BatchWanted(1))
    third = stage.groups()
    assert len(third) == 2
    stage.do(ev.Published(WeightsId(1, 1)), ev.Installed("e", WeightsId(1, 1)))
    stage.do(ev.Committed(2), ev.BatchWanted(2))
    finish(stage, third[:1], 1)
    assert not stage.groups(), "a group of the batch is incomplete"
    finish(stage, third[1:], 1)
    assert len(stage.groups()) == 2


def test_a_batch_ends_on_the_weights_it_began_with():
    stage = scene()
    stage.do(ev.BatchWanted(0))
    finish(stage, stage.groups(), 0)
    second = stage.groups()
    weights = WeightsId(1, 1)
    asked = stage.do(ev.Committed(1), ev.Published(weights), ev.BatchWanted(1), ev.Tick(1.0))
    assert not [c for c in asked if isinstance(c, ev.OfferTransfer)], "the engine is idle, but its batch is not whole"
    finish(stage, second, 0)
    assert stage.take(ev.OfferTransfer)[-1].weights == weights
    stage.check_waits_for(weights, "e")


def test_a_dropped_group_is_replaced_within_its_batch():
    stage = scene(tasks={"a": TaskRules(1, group_filter="same_reward")})
    stage.do(ev.BatchWanted(0))
    batch = stage.groups()
    finish(stage, batch[:1], 0)
    (again,) = stage.groups()
    for group in (batch[1], again):
        for number, play in enumerate(group):
            stage.finish(play, 0, reward=float(number))
    assert len(stage.groups()) == 2


def test_a_restored_core_opens_the_batches_that_its_groups_fill():
    stage = scene(steps=6)
    stage.do(ev.BatchWanted(0))
    finish(stage, stage.groups(), 0)
    finish(stage, stage.groups()[:1], 0)
    for version, complete in ((0, 3), (1, 1)):
        if version:
            stage.do(ev.Committed(1))
        saved = stage.core.snapshot()
        assert len(saved["groups"]) == complete
        restored = Core(stage.core.rules, 2, saved)
        restored.settle(ev.Joined("env", "env", capacity=100))
        restored.settle(ev.Joined("trainer", "trainer", attempt=2, version=version))
        opened = restored.settle(ev.Published(WeightsId(2, version)))
        assert len({c.trajectory.split(".m")[0] for c in opened if isinstance(c, ev.Play)}) == 1


def test_in_a_run_every_step_but_the_first_trains_on_the_version_before():
    rules = FlowRules({"a": TaskRules(1.0), "b": TaskRules(2.0)}, 6, 4, 2, validation_plays=2, validation_every=2,
                      **ONE_OFF)  # fmt: skip
    members = [Member("trainer-0", "trainer"), Member("relay-n0", "relay"), Member("env-0", "env", capacity=5)]
    members += [Member("reward-0", "reward"), Member("engine-0", "engine", pool="p"), Member("engine-1", "engine")]
    world = World(rules, members, 3, Durations(train=lambda r: r.uniform(0.1, 3.0)))
    world.checks.append(_one_batch_is_generated)
    for member in members:
        world.start(member.name)
    assert world.run(until_s=1000.0) == "finished"
    for line in world.ledger:
        assert set(line.start_versions) == {max(line.version - 2, 0)}


def _one_batch_is_generated(world: World, event: object) -> None:
    assert len({g.admitted_version for g in world.core.groups.values() if not g.complete}) <= 1
