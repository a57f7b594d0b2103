"""The core by example: one test per rule of the design."""

from __future__ import annotations

import json

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.rules import FlowRules, TaskRules
from rollart_hpc.types import WeightsId
from tests.flow.scene import Scene


def test_admission_is_bounded_by_one_plus_alpha_batches():
    assert len(Scene(alpha=0).groups()) == 2
    assert len(Scene(alpha=2).groups()) == 6


def test_no_group_is_admitted_for_a_step_that_will_never_be():
    assert len(Scene(alpha=2, steps=1).groups()) == 2


def test_a_group_shares_its_seed_and_members_sample_apart():
    group = Scene().groups()[0]
    assert len({p.seed for p in group}) == 1
    assert len({p.sample_seed for p in group}) == 2


def test_training_and_validation_never_share_a_seed():
    rules = FlowRules({"a": TaskRules(1)}, 1, 1, 1)
    train = {rules.env_seed("train", "a", i) for i in range(1000)}
    assert not train & {rules.env_seed("validate", "a", i) for i in range(1000)}


def test_surplus_members_are_cancelled_at_once():
    scene = Scene(redundancy=1)
    group = scene.groups()[0]
    scene.do(ev.TurnWanted(group[2].trajectory, 0, 0))
    (request,) = scene.take(ev.Generate)
    scene.finish(group[0])
    scene.finish(group[1])
    assert [c.trajectory for c in scene.take(ev.CancelPlay)] == [group[2].trajectory]
    assert [c.request for c in scene.take(ev.AbortRequest)] == [request.request]
    assert scene.core.tally.dropped["surplus"] == 1


def test_a_filtered_group_is_replaced():
    scene = Scene(tasks={"a": TaskRules(1, group_filter="same_reward")})
    group = scene.groups()[0]
    for play in group:
        scene.finish(play, reward=0.5)
    assert scene.core.tally.dropped["group_filtered"] == 2
    assert len(scene.groups()) == 1


def test_a_filter_has_a_tolerance_looks_at_success_and_stops_after_its_tries():
    close = TaskRules(1, group_filter="same_reward", filter_tolerance=0.1)
    assert _num_filtered(close, [0.5, 0.55]) == 2
    assert _num_filtered(close, [0.5, 0.65]) == 0
    assert _num_filtered(TaskRules(1, group_filter="same_success"), [0.5, 0.75]) == 2
    assert _num_filtered(TaskRules(1, group_filter="same_success"), [0.0, 0.75]) == 0
    assert _num_filtered(TaskRules(1, group_filter="same_success", filter_tries=2), [0.5, 0.75], groups=3) == 4


def _num_filtered(rules: TaskRules, rewards: list[float], groups: int = 1) -> int:
    scene = Scene(tasks={"a": rules})
    for _ in range(groups):
        for play, reward in zip(scene.groups()[0], rewards):
            scene.finish(play, reward=reward)
    return scene.core.tally.dropped["group_filtered"]


def test_groups_stream_to_the_trainer_and_the_last_chunk_is_marked():
    scene = Scene()
    scene.do(ev.BatchWanted(0))
    chunks = []
    for group in scene.groups()[:2]:
        for play in group:
            scene.finish(play)
        chunks += scene.take(ev.SendChunk)
    assert [(c.index, len(c.groups), c.last) for c in chunks] == [(0, 1, False), (1, 1, True)]


def test_without_streaming_a_batch_leaves_in_one_piece():
    scene = Scene(streaming=False)
    scene.do(ev.BatchWanted(0))
    for group in scene.groups()[:2]:
        for play in group:
            scene.finish(play)
    (chunk,) = scene.take(ev.SendChunk)
    assert len(chunk.groups) == 2 and chunk.last


def test_a_group_that_can_train_no_more_is_aborted_in_mid_decode():
    scene = Scene(alpha=0, redundant_groups=1)
    scene.do(ev.BatchWanted(0))
    *fast, slow = scene.groups()
    scene.turn(slow[0])
    scene.do(ev.TurnWanted(slow[0].trajectory, 0, 1))
    for group in fast:
        for play in group:
            scene.finish(play)
    assert scene.core.tally.dropped["group_stale"] == 2
    assert len(scene.take(ev.AbortRequest)) == 1


def test_in_lockstep_no_environment_goes_on_before_all_have_answered():
    scene = Scene(lockstep=True, alpha=0, streaming=False)
    first, *others = scene.take(ev.Play)
    assert not [c for c in scene.do(ev.TurnWanted(first.trajectory, 0, 0)) if isinstance(c, ev.Generate)]
    scene.do(*(ev.TurnWanted(p.trajectory, 0, 0) for p in others))
    requests = scene.take(ev.Generate)
    assert len(requests) == 4
    scene.do(*(ev.Generated(r.request, 0, 0) for r in requests[:-1]))
    assert not scene.take(ev.Deliver)
    scene.do(ev.Generated(requests[-1].request, 0, 0))
    assert len(scene.take(ev.Deliver)) == 4


def test_weights_between_trajectories_wait_for_the_running_ones():
    scene = Scene(install_idle=True, abort_stale=False, engines=(("e", "compute"),), direct=True)
    scene.do(ev.BatchWanted(0))
    groups = scene.groups()
    straggler = groups[2][0]
    scene.turn(straggler)
    for play in [p for group in groups[:2] for p in group]:
        scene.finish(play)
    scene.take(ev.OfferTransfer)
    scene.do(ev.Committed(1), ev.Published(WeightsId(1, 1)))
    assert not scene.take(ev.OfferTransfer)
    assert scene.turn(straggler, turn=1).engine == "e"
    scene.do(ev.Ended(straggler.trajectory, 0, None, 2), ev.Tick(1.0))
    assert len(scene.take(ev.OfferTransfer)) == 1


def test_every_process_of_an_engine_has_a_rank_in_a_direct_transfer():
    scene = Scene()
    scene.do(ev.Joined("wide", "engine", pool="compute", num_ranks=4), ev.Joined("late", "engine", pool="bandwidth"))
    scene.publish(0)
    scene.take(ev.OfferTransfer)
    scene.do(ev.Committed(1), ev.Published(WeightsId(1, 1)))
    (offer,) = scene.take(ev.OfferTransfer)
    scene.do(ev.TransferReady(offer.epoch, "host", 7))
    joins = scene.take(ev.JoinTransfer)
    assert [(join.target, join.rank) for join in joins] == [("engine-c", 1), ("engine-b", 2), ("wide", 3), ("late", 7)]
    assert {join.size for join in joins} == {offer.size} == {8}


def test_a_checkpoint_keeps_complete_groups_and_plays_the_others_again():
    scene = Scene(checkpoint_every=1)
    scene.do(ev.BatchWanted(0))
    groups = scene.groups()
    for play in [p for group in groups[:3] for p in group]:
        scene.finish(play)
    scene.do(ev.Committed(1))
    (save,) = scene.take(ev.SaveCheckpoint)
    saved = scene.core.snapshot()
    assert save.version == saved["version"] == 1
    assert [g["id"] for g in saved["groups"]] == [2]
    twin = Core(scene.core.rules, 2, saved)
    assert twin.version == 1 and list(twin.groups) == [2]
    assert twin.admission.next_index["a"] == 3
    twin.handle(ev.Joined("trainer", "trainer", attempt=2, version=1))
    assert list(twin.groups) == [2], "the trainer is where the checkpoint is: nothing is rolled back"


def test_a_drain_saves_and_stops():
    scene = Scene()
    scene.do(ev.DrainWanted("cancelled"))
    (save,) = scene.take(ev.SaveCheckpoint)
    scene.do(ev.Saved(save.version))
    (stop,) = scene.take(ev.StopRun)
    assert (stop.state, stop.reason) == ("drained", "cancelled")


def test_a_drain_at_once_stops_even_while_a_checkpoint_is_written():
    scene = Scene()
    scene.do(ev.DrainWanted("cancelled"))
    assert scene.take(ev.SaveCheckpoint) and not scene.take(ev.StopRun)
    scene.do(ev.DrainWanted("cancelled", at_once=True))
    (stop,) = scene.take(ev.StopRun)
    assert stop.state == "drained"


def test_a_run_ends_after_its_last_step_validation_and_checkpoint():
    scene = Scene(steps=1, validation_plays=1, groups_per_step=1, group_size=1)
    assert not scene.core.groups, "the first validation runs alone"
    scene.finish(scene.take(ev.Play)[0])
    assert [c.version for c in scene.take(ev.ValidationDone)] == [0]
    scene.do(ev.BatchWanted(0))
    scene.finish(scene.take(ev.Play)[0])
    scene.do(ev.Committed(1))
    scene.publish(1)
    scene.finish(scene.take(ev.Play)[0], version=1)
    (save,) = scene.take(ev.SaveCheckpoint)
    scene.do(ev.Saved(save.version))
    assert scene.core.stopped == "finished"


def after_one_step(num_begun: int) -> Scene:
    """Step 0 is committed, version 1 is still on its way; of the two groups for step 1 so many have begun."""
    scene = Scene(alpha=1, engines=(("engine-c", "compute"),))
    scene.do(ev.BatchWanted(0))
    first, second, *later = scene.groups()
    for play in first + second:
        scene.finish(play)
    for group in later[:num_begun]:
        scene.turn(group[0])
    scene.do(ev.Committed(1))
    return scene


def test_a_trajectory_does_not_begin_on_weights_that_would_make_it_stale_before_its_turn():
    after_one_step(num_begun=2).check_waits_for(WeightsId(1, 1), "engine-c")


def test_while_weights_travel_a_group_begins_on_the_older_version_if_the_next_step_has_a_place_for_it():
    scene = after_one_step(num_begun=1)
    new, last = scene.groups()
    assert scene.turn(new[0], version=0), "one of the two places of step 1 is left"
    assert scene.turn(new[1], version=0), "siblings of a group that has begun may too"
    scene.out = [ev.Play("env", p.trajectory, 0, "a", 0, 0) for p in last]
    scene.check_waits_for(WeightsId(1, 1), "engine-c")


def test_a_task_whose_complete_groups_wait_too_long_is_not_quarantined():
    scene = Scene(tasks={"a": TaskRules(1), "b": TaskRules(1)}, quarantine_after=1, alpha=0, redundant_groups=2)
    for group in scene.groups():
        for play in group:
            scene.finish(play)
    scene.do(ev.BatchWanted(0))
    assert scene.core.tally.dropped["group_stale"] == 4
    assert not any(task.quarantined for task in scene.core.tally.tasks.values())


def test_a_resumed_run_does_not_repeat_the_seeds_of_groups_it_kept():
    scene = Scene(checkpoint_every=1, alpha=2)
    scene.do(ev.BatchWanted(0))
    groups = scene.groups()
    for play in [p for group in (*groups[:2], groups[3]) for p in group]:
        scene.finish(play)
    scene.do(ev.Committed(1))
    saved = scene.core.snapshot()
    twin = Core(scene.core.rules, 2, saved)
    twin.handle(ev.Joined("trainer", "trainer", attempt=2, version=1))
    twin.handle(ev.Published(WeightsId(2, 1)))
    seeds = [group.members[0].seed for group in twin.groups.values()]
    assert len(seeds) == len(set(seeds)) == 4


def test_a_snapshot_survives_json_and_keeps_the_tally():
    scene = Scene()
    for play in scene.take(ev.Play)[:4]:
        scene.finish(play)
    scene.do(ev.Lost("engine-c"))
    twin = Core(scene.core.rules, 2, json.loads(json.dumps(scene.core.snapshot())))
    assert twin.tally.tasks == scene.core.tally.tasks
    assert twin.tally.dropped == scene.core.tally.dropped and twin.tally.staleness == scene.core.tally.staleness


def test_transcripts_to_score_are_counted_unless_they_are_held_back():
    for held_back, expected in ((False, [1, 1, 0]), (True, [0, 0, 0])):
        scene = Scene(rewards_last=held_back)
        play = scene.take(ev.Play)[0]
        scene.turn(play)
        scene.do(ev.Lost("reward"), ev.Ended(play.trajectory, play.issue, None, 1))
        counts = [scene.core.trajectories.num_to_score]
        scene.do(ev.Joined("reward-2", "reward", capacity=100))
        counts.append(scene.core.trajectories.num_to_score)
        scene.do(ev.Scored(play.trajectory, play.issue, 1.0, True))
        assert [*counts, scene.core.trajectories.num_to_score] == expected


def test_no_redundant_group_is_admitted_that_would_be_stale_from_the_start():
    """They were dropped at their first turn, again and again, until the task was quarantined."""
    scene = Scene(alpha=0, groups_per_step=1, group_size=1, redundant_groups=2, steps=5)
    scene.do(ev.BatchWanted(0))
    (first, *_) = scene.take(ev.Play)
    scene.finish(first)
    assert scene.take(ev.SendChunk)[-1].last
    before = scene.core.admission.num_groups
    for _ in range(20):
        for play in scene.take(ev.Play):
            scene.do(ev.TurnWanted(play.trajectory, play.issue, 0))
        for request in scene.take(ev.Generate):
            scene.do(ev.Generated(request.request, 0, 0))
    assert scene.core.admission.num_groups == before and not scene.core.tally.tasks["a"].quarantined
