"""The core by example: one test per rule of the design."""

from __future__ import annotations

import json

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.policy import Policy, TaskPolicy
from rollart_hpc.types import WeightsId


class Scene:
    """A core with everyone aboard and version 0 installed; `do` feeds events and keeps the commands."""

    def __init__(self, engines=(("engine-c", "compute"), ("engine-b", "bandwidth")), env_slots=100, **policy):
        tasks = policy.pop("tasks", {"a": TaskPolicy(1.0, "compute")})
        defaults = {"steps": 3, "groups_per_step": 2, "group_size": 2, "alpha": 1, "direct": True}
        self.core = Core(Policy(tasks=tasks, **{**defaults, **policy}))
        self.out: list[ev.Command] = []
        self.do(ev.Joined("env", "env", capacity=env_slots), ev.Joined("reward", "reward", capacity=100))
        self.do(*(ev.Joined(name, "engine", pool=pool, capacity=100) for name, pool in engines))
        self.do(ev.Joined("trainer", "trainer", version=0))
        self.publish(0)

    def do(self, *events: ev.Event) -> list[ev.Command]:
        new = [command for event in events for command in self.core.handle(event)]
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
        self.do(ev.Ended(play.trajectory, play.issue, "done", 1), ev.Scored(play.trajectory, play.issue, reward, True))

    def groups(self) -> list[list[ev.Play]]:
        plays: dict[str, list[ev.Play]] = {}
        for play in self.take(ev.Play):
            plays.setdefault(play.trajectory.rsplit(".", 1)[0], []).append(play)
        return list(plays.values())


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
    policy = Policy({"a": TaskPolicy(1)}, 1, 1, 1)
    train = {policy.env_seed("train", "a", i) for i in range(1000)}
    assert not train & {policy.env_seed("validate", "a", i) for i in range(1000)}


def test_requests_go_to_the_pool_of_the_task():
    scene = Scene(tasks={"a": TaskPolicy(1, "compute"), "b": TaskPolicy(1, "bandwidth")})
    for play in scene.take(ev.Play):
        request = scene.turn(play)
        assert request.engine == {"a": "engine-c", "b": "engine-b"}[play.task]


def test_an_empty_pool_falls_back_and_comes_back():
    scene = Scene()
    first, second, third, *_ = scene.take(ev.Play)
    scene.do(ev.Lost("engine-c"))
    assert scene.turn(first).engine == "engine-b"
    assert scene.core.tally.fallbacks == 1
    scene.do(ev.Joined("engine-c", "engine", pool="compute", capacity=9))
    assert not [c for c in scene.do(ev.TurnWanted(second.trajectory, 0, 0)) if isinstance(c, ev.Generate)], "no weights"
    scene.do(ev.Installed("engine-c", WeightsId(1, 0)))
    assert scene.turn(third).engine == "engine-c"
    assert scene.turn(first, turn=1).engine == "engine-c", "the fallback is undone"


def test_a_trajectory_stays_with_the_engine_that_holds_its_prefix():
    scene = Scene(engines=(("e0", "compute"), ("e1", "compute")))
    for play in scene.take(ev.Play):
        home = scene.turn(play).engine
        assert {scene.turn(play, turn=t).engine for t in (1, 2, 3)} == {home}


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
    scene = Scene(tasks={"a": TaskPolicy(1, group_filter="same_reward")})
    group = scene.groups()[0]
    for play in group:
        scene.finish(play, reward=0.5)
    assert scene.core.tally.dropped["group_filtered"] == 2
    assert len(scene.groups()) == 1


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


def test_an_engine_too_far_behind_gets_no_requests():
    scene = Scene(alpha=0, engines=(("engine-c", "compute"),))
    scene.do(ev.BatchWanted(0))
    for play in scene.take(ev.Play):
        scene.finish(play)
    scene.do(ev.Committed(1))
    play = scene.take(ev.Play)[0]
    assert not [c for c in scene.do(ev.TurnWanted(play.trajectory, 0, 0)) if isinstance(c, ev.Generate)]
    scene.do(ev.Published(WeightsId(1, 1)))
    assert [c for c in scene.do(ev.Installed("engine-c", WeightsId(1, 1))) if isinstance(c, ev.Generate)]


def test_a_lost_engine_costs_one_turn():
    scene = Scene(engines=(("e0", "compute"), ("e1", "compute")))
    play = scene.take(ev.Play)[0]
    home = scene.turn(play).engine
    scene.do(ev.TurnWanted(play.trajectory, 0, 1))
    scene.do(ev.Lost(home))
    (again,) = scene.take(ev.AskAgain)
    assert (again.trajectory, again.turn) == (play.trajectory, 1)
    assert scene.turn(play, turn=1).engine != home


def test_a_lost_env_worker_costs_its_trajectories_and_late_answers_are_superseded():
    scene = Scene(env_slots=1)
    (play,) = scene.take(ev.Play)
    scene.do(ev.Joined("env-2", "env", capacity=1), ev.Lost("env"))
    again = scene.take(ev.Play)
    assert play.trajectory in [p.trajectory for p in again] or scene.core.plays.all[play.trajectory].issue == 1
    scene.do(ev.TurnWanted(play.trajectory, play.issue, 0))
    assert scene.core.tally.dropped["superseded"] == 1
    assert scene.core.tally.dropped["env_worker_lost"] == 1


def test_a_lost_reward_worker_is_scored_elsewhere_and_once():
    scene = Scene()
    play = scene.take(ev.Play)[0]
    scene.turn(play)
    scene.do(ev.Ended(play.trajectory, 0, "done", 1))
    scene.do(ev.Joined("reward-2", "reward", capacity=1), ev.Lost("reward"))
    assert scene.take(ev.Score)[-1].worker == "reward-2"
    scene.do(ev.Scored(play.trajectory, 0, 1.0, True), ev.Scored(play.trajectory, 0, 0.0, False))
    assert scene.core.tally.tasks["a"].trajectories == 1
    assert scene.core.tally.dropped["superseded"] == 1


def test_a_lost_trainer_gives_its_groups_back():
    scene = Scene()
    scene.do(ev.BatchWanted(0))
    for group in scene.groups()[:2]:
        for play in group:
            scene.finish(play)
    scene.do(ev.Lost("trainer"), ev.Joined("trainer", "trainer", attempt=2, version=0))
    scene.publish(0, attempt=2)
    scene.take(ev.SendChunk)
    scene.do(ev.BatchWanted(0))
    (chunk,) = scene.take(ev.SendChunk)
    assert chunk.last and len(chunk.groups) == 2


def test_what_began_on_a_rolled_back_version_is_dropped():
    scene = Scene()
    scene.do(ev.BatchWanted(0))
    early = scene.groups()
    for play in [p for group in early[:2] for p in group]:
        scene.finish(play)
    scene.do(ev.Committed(1))
    scene.publish(1)
    late = scene.groups()[0]
    scene.turn(early[2][0], version=0)
    scene.turn(late[0], version=1)
    scene.do(ev.Lost("trainer"), ev.Joined("trainer", "trainer", attempt=2, version=0))
    assert scene.core.tally.dropped["rolled_back"] == 2
    assert scene.core.version == 0
    blocked = scene.do(ev.TurnWanted(early[2][0].trajectory, 0, 1))
    assert not [c for c in blocked if isinstance(c, ev.Generate)], "engines must install again before they generate"


def test_a_task_whose_resets_fail_is_set_aside_and_the_run_goes_on():
    scene = Scene(tasks={"a": TaskPolicy(1), "b": TaskPolicy(1)}, quarantine_after=3)
    play = next(p for p in scene.take(ev.Play) if p.task == "a")
    for issue in range(3):
        scene.do(ev.Ended(play.trajectory, issue, "reset_failed"), ev.Tick(100.0 * (issue + 1)))
    assert scene.core.tally.tasks["a"].quarantined
    assert not scene.core.stopped
    assert {g.task for g in scene.core.groups.values()} == {"b"}


def test_when_all_tasks_are_set_aside_the_run_fails():
    scene = Scene(quarantine_after=2)
    play = scene.take(ev.Play)[0]
    for issue in range(2):
        scene.do(ev.Ended(play.trajectory, issue, "reset_failed"), ev.Tick(100.0 * (issue + 1)))
    assert scene.core.stopped == "failed"


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
    scene.do(ev.Ended(straggler.trajectory, 0, "done", 2), ev.Tick(1.0))
    assert len(scene.take(ev.OfferTransfer)) == 1


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
    twin = Core(scene.core.policy, 2, saved)
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


def test_a_trajectory_does_not_begin_on_weights_that_would_make_it_stale_before_its_turn():
    scene = Scene(alpha=1, engines=(("engine-c", "compute"),))
    scene.do(ev.BatchWanted(0))
    for play in [p for group in scene.groups()[:2] for p in group]:
        scene.finish(play)
    scene.do(ev.Committed(1))
    play = scene.take(ev.Play)[0]
    assert not [c for c in scene.do(ev.TurnWanted(play.trajectory, 0, 0)) if isinstance(c, ev.Generate)]
    scene.do(ev.Published(WeightsId(1, 1)))
    assert [c for c in scene.do(ev.Installed("engine-c", WeightsId(1, 1))) if isinstance(c, ev.Generate)]


def test_a_task_whose_complete_groups_wait_too_long_is_not_quarantined():
    scene = Scene(tasks={"a": TaskPolicy(1), "b": TaskPolicy(1)}, quarantine_after=1, alpha=0, redundant_groups=2)
    for group in scene.groups():
        for play in group:
            scene.finish(play)
    scene.do(ev.BatchWanted(0))
    assert scene.core.tally.dropped["group_stale"] == 4
    assert not any(task.quarantined for task in scene.core.tally.tasks.values())


def test_an_engine_without_room_fails_the_trajectory_not_the_run():
    scene = Scene()
    play = scene.take(ev.Play)[0]
    scene.do(ev.TurnWanted(play.trajectory, 0, 0))
    (request,) = scene.take(ev.Generate)
    scene.do(ev.Generated(request.request, -1, -1))
    assert scene.core.tally.dropped["no_room"] == 1
    assert scene.core.plays.all[play.trajectory].issue == 1


def test_a_resumed_run_does_not_repeat_the_seeds_of_groups_it_kept():
    scene = Scene(checkpoint_every=1, alpha=2)
    scene.do(ev.BatchWanted(0))
    groups = scene.groups()
    for play in [p for group in (*groups[:2], groups[3]) for p in group]:
        scene.finish(play)
    scene.do(ev.Committed(1))
    saved = scene.core.snapshot()
    twin = Core(scene.core.policy, 2, saved)
    twin.handle(ev.Joined("trainer", "trainer", attempt=2, version=1))
    twin.handle(ev.Published(WeightsId(2, 1)))
    seeds = [group.members[0].seed for group in twin.groups.values()]
    assert len(seeds) == len(set(seeds)) == 4


def test_a_snapshot_survives_json_and_keeps_the_tally():
    scene = Scene()
    for play in scene.take(ev.Play)[:4]:
        scene.finish(play)
    scene.do(ev.Lost("engine-c"))
    twin = Core(scene.core.policy, 2, json.loads(json.dumps(scene.core.snapshot())))
    assert twin.tally.tasks == scene.core.tally.tasks
    assert twin.tally.dropped == scene.core.tally.dropped and twin.tally.staleness == scene.core.tally.staleness
    assert not twin.tally.joined


def test_a_version_that_no_relay_could_adopt_is_published_again():
    scene = Scene(direct=False)
    scene.do(ev.Joined("relay", "relay"))
    scene.take(ev.Adopt)
    scene.do(ev.TransferFailed(0, "relay"), ev.Tick(1.0))
    assert [c.weights for c in scene.take(ev.PublishAgain)] == [WeightsId(1, 0)]
    scene.do(ev.Published(WeightsId(1, 0)))
    assert [c.weights for c in scene.take(ev.Adopt)] == [WeightsId(1, 0)]


def test_a_relay_whose_copy_is_bad_gets_one_from_another_relay():
    newest = WeightsId(1, 0)
    scene = Scene(direct=False)
    scene.do(ev.Joined("relay", "relay"), ev.Joined("far", "relay", node="far"))
    scene.do(ev.Held("relay", newest), ev.Held("far", newest))
    scene.do(ev.InstallFailed("engine-c", newest))
    assert scene.take(ev.Adopt)[-1] == ev.Adopt("relay", newest)  # it is asked to look at its copy
    scene.take(ev.OfferTransfer)
    scene.do(ev.TransferFailed(0, "relay"), ev.Tick(1.0))
    assert [c.source for c in scene.take(ev.OfferTransfer)] == ["far"] and not scene.take(ev.PublishAgain)


def test_a_pool_whose_first_engine_is_yet_to_come_is_waited_for():
    scene = Scene(engines=(("engine-b", "bandwidth"),), pools=frozenset({"compute", "bandwidth"}))
    play = scene.take(ev.Play)[0]
    assert not [c for c in scene.do(ev.TurnWanted(play.trajectory, 0, 0)) if isinstance(c, ev.Generate)]
    scene.do(ev.Joined("engine-c", "engine", pool="compute", capacity=9), ev.Installed("engine-c", WeightsId(1, 0)))
    assert [c.engine for c in scene.take(ev.Generate)] == ["engine-c"]
    assert scene.core.tally.fallbacks == 0


# --- split turns -------------------------------------------------------------------------------

SPLIT = {"a": TaskPolicy(1.0, "compute", split=True)}


def wanted(scene: Scene, play: ev.Play) -> ev.Generate:
    (request,) = [c for c in scene.do(ev.TurnWanted(play.trajectory, play.issue, 0)) if isinstance(c, ev.Generate)]
    return request


def test_a_split_turn_is_prefilled_in_one_pool_and_decoded_in_the_other():
    scene = Scene(tasks=SPLIT)
    play = scene.groups()[0][0]
    prefill = wanted(scene, play)
    assert (prefill.engine, prefill.prefill_only, prefill.kv) == ("engine-c", True, "")
    (decode,) = [c for c in scene.do(ev.Prefilled(prefill.request, "handle", 7)) if isinstance(c, ev.Generate)]
    assert (decode.engine, decode.prefill_only, decode.kv) == ("engine-b", False, "handle")
    (answer,) = [c for c in scene.do(ev.Generated(decode.request, 0, 0, 1, 3)) if isinstance(c, ev.Deliver)]
    assert answer.trajectory == play.trajectory
    tally = scene.core.tally
    assert (tally.split_requests, tally.split_fallbacks, tally.fallbacks, tally.stray_requests) == (1, 0, 0, 0)
    assert tally.tasks["a"].prefill_tokens == 8
    again = wanted(scene, play)  # the next turn begins with a prefill
    assert again.prefill_only


def test_without_one_of_its_pools_a_split_turn_is_served_as_a_whole():
    scene = Scene(tasks=SPLIT)
    play, other = scene.groups()[0][:2]
    prefill = wanted(scene, play)
    scene.do(ev.Lost("engine-b"))
    (whole,) = [c for c in scene.do(ev.Prefilled(prefill.request, "handle")) if isinstance(c, ev.Generate)]
    assert (whole.engine, whole.prefill_only, whole.kv) == ("engine-c", False, "")
    assert not wanted(scene, other).prefill_only
    assert scene.core.tally.split_fallbacks == 2 and scene.core.tally.split_requests == 0


def test_a_prefill_that_is_lost_is_asked_for_again():
    scene = Scene(engines=(("engine-c", "compute"), ("engine-d", "compute"), ("engine-b", "bandwidth")), tasks=SPLIT)
    play = scene.groups()[0][0]
    prefill = wanted(scene, play)
    (ask,) = [c for c in scene.do(ev.Lost(prefill.engine)) if isinstance(c, ev.AskAgain)]
    assert ask.trajectory == play.trajectory
    assert scene.do(ev.Prefilled(prefill.request, "late")) == []
    assert wanted(scene, play).prefill_only


def test_transcripts_to_score_are_counted_unless_they_are_held_back():
    for held_back, expected in ((False, [1, 1, 0]), (True, [0, 0, 0])):
        scene = Scene(rewards_last=held_back)
        play = scene.take(ev.Play)[0]
        scene.turn(play)
        scene.do(ev.Lost("reward", "left"), ev.Ended(play.trajectory, play.issue, "done", 1))
        counts = [scene.core.plays.num_to_score]
        scene.do(ev.Joined("reward-2", "reward", capacity=100))
        counts.append(scene.core.plays.num_to_score)
        scene.do(ev.Scored(play.trajectory, play.issue, 1.0, True))
        assert [*counts, scene.core.plays.num_to_score] == expected
