"""The core by example: what is lost, and what becomes of it."""

from __future__ import annotations

import pytest

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.rules import TaskRules
from rollart_hpc.types import WeightsId
from rollart_hpc.vocabulary import DropReason
from tests.flow.scene import Scene


def test_a_lost_engine_costs_one_turn():
    scene = Scene(engines=(("e0", "compute"), ("e1", "compute")))
    play = scene.take(ev.Play)[0]
    home = scene.turn(play).engine
    scene.do(ev.TurnWanted(play.trajectory, 0, 1))
    scene.do(ev.Lost(home))
    (again,) = scene.take(ev.AskAgain)
    assert (again.trajectory, again.turn) == (play.trajectory, 1)
    assert scene.turn(play, turn=1).engine != home


def test_a_trajectory_that_moves_to_an_engine_that_lags_behind_is_as_old_as_its_oldest_token():
    scene = Scene(engines=(("e0", "compute"), ("e1", "compute")), alpha=1)
    play = scene.take(ev.Play)[0]
    scene.turn(play, version=2)
    scene.turn(play, version=1, turn=1)
    trajectory = scene.core.trajectories.all[play.trajectory]
    assert trajectory.first_version == 1 == trajectory.group.version
    scene.turn(play, version=2, turn=2)
    assert trajectory.first_version == 1


def test_a_lost_env_worker_costs_its_trajectories_and_late_answers_are_superseded():
    scene = Scene(env_slots=1)
    (play,) = scene.take(ev.Play)
    scene.do(ev.Joined("env-2", "env", capacity=1), ev.Lost("env"))
    again = scene.take(ev.Play)
    assert play.trajectory in [p.trajectory for p in again] or scene.core.trajectories.all[play.trajectory].issue == 1
    scene.do(ev.TurnWanted(play.trajectory, play.issue, 0))
    assert scene.core.tally.dropped["superseded"] == 1
    assert scene.core.tally.dropped["env_worker_lost"] == 1


def test_a_lost_reward_worker_is_scored_elsewhere_and_once():
    scene = Scene()
    play = scene.take(ev.Play)[0]
    scene.turn(play)
    scene.do(ev.Ended(play.trajectory, 0, None, 1))
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
    scene = Scene(tasks={"a": TaskRules(1), "b": TaskRules(1)}, quarantine_after=3)
    play = next(p for p in scene.take(ev.Play) if p.task == "a")
    for issue in range(3):
        scene.do(
            ev.Ended(play.trajectory, issue, DropReason.RESET_FAILED, detail="E: no\nroom"),
            ev.Tick(100.0 * (issue + 1)),
        )
    assert scene.core.tally.tasks["a"].quarantined
    error = "reset_failed: E: no room (see env.log)"
    assert scene.core.tally.tasks["a"].last_error == error
    assert scene.take(ev.Warn) == [
        ev.Warn("task_failed", "a", error),
        ev.Warn("task_quarantined", "a", f"3 resets in a row failed, the last with {error}"),
    ]
    assert not scene.core.stopped
    assert {g.task for g in scene.core.groups.values()} == {"b"}


def test_when_all_tasks_are_set_aside_the_run_fails():
    scene = Scene(quarantine_after=2)
    play = scene.take(ev.Play)[0]
    for issue in range(2):
        scene.do(
            ev.Ended(play.trajectory, issue, DropReason.RESET_FAILED, detail="my bug"), ev.Tick(100.0 * (issue + 1))
        )
    assert scene.core.stopped == "failed"
    (stop,) = scene.take(ev.StopRun)
    assert stop.reason.startswith("all tasks are quarantined: a: 2 resets") and "my bug (see env.log)" in stop.reason


def test_what_a_reward_function_raises_is_the_reason_why_its_task_is_set_aside():
    scene = Scene(quarantine_after=1, groups_per_step=1, group_size=1, alpha=0, reward_retries=0)
    play = scene.take(ev.Play)[0]
    scene.turn(play)
    scene.do(ev.Ended(play.trajectory, 0, None, 1))
    scene.do(ev.ScoreFailed(play.trajectory, 0, "reward", "KeyError: 'found'"))
    (warning,) = scene.take(ev.Warn)
    assert warning.what == "task_quarantined"
    assert warning.detail == "1 scores in a row failed, the last with reward_failed: KeyError: 'found' (see reward.log)"


def test_validation_plays_that_can_not_be_played_have_no_score():
    tasks = {"a": TaskRules(1), "b": TaskRules(1)}
    scene = Scene(tasks=tasks, validation_plays=2, quarantine_after=2)
    for play in scene.take(ev.Play):
        if play.task == "a":
            scene.do(ev.Ended(play.trajectory, 0, DropReason.RESET_FAILED))
        else:
            scene.finish(play)
    scene.do(ev.Tick(100.0))
    (left,) = scene.take(ev.Play)  # the other one was given up when its task was quarantined
    scene.do(ev.Ended(left.trajectory, left.issue, DropReason.RESET_FAILED))
    (done,) = scene.core.validator.done
    assert (done.scores["a"].plays, done.scores["a"].failed, done.scores["a"].success) == (0, 2, None)
    assert (done.scores["b"].plays, done.scores["b"].failed, done.scores["b"].success) == (2, 0, 1.0)


def test_an_engine_without_room_fails_the_trajectory_not_the_run():
    scene = Scene()
    play = scene.take(ev.Play)[0]
    scene.do(ev.TurnWanted(play.trajectory, 0, 0))
    (request,) = scene.take(ev.Generate)
    scene.do(ev.Generated(request.request, -1, -1))
    assert scene.core.tally.dropped["no_room"] == 1
    assert scene.core.trajectories.all[play.trajectory].issue == 1


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


@pytest.mark.parametrize("end", [ev.EndNear("env-0"), ev.DrainWanted("SIGTERM")])
def test_what_fails_while_the_run_ends_quarantines_no_task(end):
    """Slurm's SIGTERM reaches what environments have started, before the run has saved its checkpoint."""
    scene = Scene(quarantine_after=2)
    plays = scene.take(ev.Play)
    scene.do(end)
    for play in plays:
        scene.do(ev.Ended(play.trajectory, play.issue, DropReason.RESET_FAILED, 0, "killed by signal 15"))
    assert not scene.core.tally.tasks["a"].quarantined and not scene.core.stopped
    assert scene.core.tally.dropped[DropReason.RESET_FAILED] == len(plays) > 2


def test_a_checkpoint_can_be_wanted_while_the_run_goes_on():
    scene = Scene(steps=100)
    scene.do(ev.SaveWanted())
    (save,) = scene.take(ev.SaveCheckpoint)
    assert save.version == 0
    scene.do(ev.SaveWanted())
    assert not scene.take(ev.SaveCheckpoint), "it is being saved"
    scene.do(ev.Saved(0, ""))
    scene.do(ev.SaveWanted())
    assert not scene.take(ev.SaveCheckpoint) and not scene.core.stopped


def test_the_end_of_an_engine_s_job_is_not_that_of_the_environments():
    scene = Scene()
    scene.do(ev.EndNear("engine-c"))
    assert not scene.core.admission.is_ending


def test_a_failed_save_is_tried_again_after_the_next_step_and_told():
    scene = Scene(steps=100, alpha=1, engines=(("engine-c", "compute"),), save_tries=3)
    scene.do(ev.SaveWanted(), ev.Saved(0, "disk full"))
    scene.take(ev.SaveCheckpoint)
    (warning,) = scene.take(ev.Warn)
    assert warning.what == "save_failed" and "disk full (2 tries left)" in warning.detail
    scene.do(ev.BatchWanted(0))
    first, second, *_ = scene.groups()
    for play in first + second:
        scene.finish(play)
    scene.do(ev.Committed(1))
    (again,) = scene.take(ev.SaveCheckpoint)
    assert again.version == 1 and not scene.core.stopped
    scene.do(ev.Saved(1))
    assert scene.core.failed_saves == 0 and scene.core.saved_version == 1


def test_at_the_end_of_a_run_a_failed_save_is_tried_again_after_a_while_and_not_for_ever():
    scene = Scene(save_tries=3)
    scene.do(ev.Tick(100.0), ev.DrainWanted("cancelled"))
    for again_s in (102.0, 106.0):
        (save,) = scene.take(ev.SaveCheckpoint)
        scene.do(ev.Saved(save.version, "disk full"), ev.Saved(save.version))  # a late answer changes nothing
        assert not scene.take(ev.SaveCheckpoint) and not scene.core.stopped
        scene.do(ev.Tick(again_s - 0.1))
        assert not scene.take(ev.SaveCheckpoint)
        scene.do(ev.Tick(again_s))
    (save,) = scene.take(ev.SaveCheckpoint)
    scene.do(ev.Saved(save.version, "disk full"))
    (stop,) = scene.take(ev.StopRun)
    assert stop.state == "failed" and "3 failed in a row" in stop.reason and "disk full" in stop.reason
