"""The core by example: workers that owe answers or keep failing, and tasks that come back."""

from __future__ import annotations

import random

import pytest

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.rules import TaskRules
from rollart_hpc.types import WeightsId
from rollart_hpc.vocabulary import DropReason, EventKind
from tests.flow.scene import Scene
from tests.flow.test_core_faults import MODES, check_ledger, make_world

TWO = (("e0", "compute"), ("e1", "compute"))


class Clock:
    """Lets time pass for a scene, a second at a time. `each` is called with every second."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.now = scene, 0.0
        scene.do(ev.Tick(0.0))

    def wait(self, seconds: float, each=lambda: None) -> list[ev.Command]:
        out: list[ev.Command] = []
        end_s = self.now + seconds
        while self.now < end_s:
            self.now += 1.0
            each()
            out += self.scene.do(ev.Tick(self.now))
        return out


def warnings(scene: Scene, what: EventKind) -> list[str]:
    return [c.task for c in scene.out if isinstance(c, ev.Warn) and c.what == what]


def two_engines(**rules) -> tuple[Scene, Clock, dict[str, ev.Generate]]:
    """A scene in which each engine was sent a turn, by engine."""
    scene = Scene(engines=TWO, steps=100, **rules)
    clock = Clock(scene)
    plays = scene.take(ev.Play)
    scene.do(*(ev.TurnWanted(play.trajectory, 0, 0) for play in plays))
    return scene, clock, {request.engine: request for request in scene.take(ev.Generate)}


def keep_busy(scene: Scene, engine: str):
    """Answers every turn that this engine is sent, and asks for the next one."""
    for request in [c for c in scene.out if isinstance(c, ev.Generate) and c.engine == engine]:
        scene.out.remove(request)
        commands = scene.do(ev.Generated(request.request, 0, 0))
        if any(isinstance(c, ev.Deliver) for c in commands):
            scene.do(ev.TurnWanted(request.trajectory, 0, request.turn + 1))


# --- engines -------------------------------------------------------------------------------------


def test_an_engine_that_answers_nothing_is_set_aside_and_its_turns_go_to_another():
    scene, clock, requests = two_engines()
    stuck = requests["e1"]
    scene.out += requests.values()
    clock.wait(100, lambda: keep_busy(scene, "e0"))
    assert warnings(scene, EventKind.WORKER_ASIDE) == ["e1"]
    (warning,) = [c for c in scene.take(ev.Warn) if c.what == EventKind.WORKER_ASIDE]
    assert "engine on node" in warning.detail and "did not move for" in warning.detail
    assert ev.AbortRequest("e1", stuck.request) in scene.out
    again = [c for c in scene.take(ev.AskAgain) if c.trajectory == stuck.trajectory]
    asked = scene.do(ev.TurnWanted(again[0].trajectory, 0, 0))
    assert [c.engine for c in asked if isinstance(c, ev.Generate)] == ["e0"]
    assert scene.core.tally.dropped[DropReason.WORKER_ASIDE] >= 1
    assert not scene.take(ev.Replace)
    clock.wait(31)
    assert [c.worker for c in scene.take(ev.Replace)] == ["e1"]
    scene.do(ev.Generated(stuck.request, 0, 0))
    assert scene.core.tally.dropped[DropReason.SUPERSEDED] == 1


def test_an_engine_that_computes_tokens_is_not_stuck_however_long_a_turn_takes():
    scene, clock, requests = two_engines()
    scene.out += requests.values()

    def live() -> None:
        keep_busy(scene, "e0")
        if clock.now % 10 == 0:
            scene.do(ev.Beat("e1", work=1000))

    clock.wait(1500, live)
    assert not warnings(scene, EventKind.WORKER_ASIDE)
    assert scene.core.tally.dropped == {}


def test_a_turn_that_a_busy_engine_has_lost_goes_to_another_engine():
    scene, clock, requests = two_engines(turn_s=1.0)
    clock.wait(60, lambda: scene.do(ev.Beat("e0", work=1), ev.Beat("e1", work=1)))
    lost = [c for c in scene.take(ev.AskAgain) if c.trajectory == requests["e1"].trajectory]
    asked = scene.do(ev.TurnWanted(lost[0].trajectory, 0, 0))
    assert [c.engine for c in asked if isinstance(c, ev.Generate)] == ["e0"]
    assert scene.core.tally.dropped[DropReason.TURN_TIMEOUT] >= 1
    assert not warnings(scene, EventKind.WORKER_ASIDE)


def test_an_engine_that_does_not_install_is_set_aside_and_the_others_get_their_weights():
    """A direct transfer waits for all: a stuck engine would keep new weights from every other."""
    scene = Scene(engines=TWO, steps=100, install_s=60.0)
    clock = Clock(scene)
    scene.core.version = 1
    scene.do(ev.Published(WeightsId(1, 1)))
    while clock.now < 100:
        for offer in scene.take(ev.OfferTransfer):
            scene.do(ev.TransferReady(offer.epoch))
            if any(c.target == "e1" for c in scene.take(ev.JoinTransfer)):
                scene.do(ev.TransferFailed(offer.epoch, "e0"))  # it waited for e1 until its deadline
            else:
                scene.do(ev.Installed("e0", WeightsId(1, 1)))
        clock.wait(10)
    assert warnings(scene, EventKind.WORKER_ASIDE) == ["e1"]
    assert scene.core.workers["e0"].installed == WeightsId(1, 1)


def test_a_relay_that_does_not_answer_is_set_aside_and_replaced():
    scene = Scene(direct=False, install_s=100)
    clock = Clock(scene)
    scene.do(ev.Joined("relay", "relay"))
    clock.wait(140)
    assert warnings(scene, EventKind.WORKER_ASIDE) == ["relay"]
    assert [c.worker for c in scene.take(ev.Replace)] == ["relay"]


def test_an_answer_about_older_weights_does_not_pay_for_newer_ones():
    """A relay that hung after it had told of its last copy was asked for the next one for ever."""
    scene = Scene(direct=False, install_s=100, steps=100)
    clock = Clock(scene)
    scene.do(ev.Joined("relay", "relay"))
    scene.do(ev.Held("relay", WeightsId(1, 0)))
    scene.core.version = 1
    scene.do(ev.Published(WeightsId(1, 1)), ev.Held("relay", WeightsId(1, 0)))
    clock.wait(140)
    assert "relay" in warnings(scene, EventKind.WORKER_ASIDE)


def test_a_late_answer_of_an_earlier_install_does_not_pay_for_the_running_one():
    scene = Scene(direct=False, install_s=100, steps=100, engines=TWO)
    clock = Clock(scene)
    scene.do(ev.Joined("relay", "relay"), ev.Held("relay", WeightsId(1, 0)), ev.Installed("e0", WeightsId(1, 0)))
    scene.core.version = 1
    scene.do(ev.Published(WeightsId(1, 1)), ev.Held("relay", WeightsId(1, 1)))
    assert {c.engine for c in scene.take(ev.Install) if c.weights.version == 1} >= {"e0"}
    scene.do(ev.InstallFailed("e0", WeightsId(1, 0)))
    clock.wait(140)
    assert "e0" in warnings(scene, EventKind.WORKER_ASIDE)


def test_a_late_answer_before_a_direct_transfer_begins_does_not_lose_the_engine_in_it():
    """The transfer ended without it; its failure was then nobody's, and it counted as installing for ever."""
    scene = Scene(engines=TWO, steps=100)
    weights = WeightsId(1, 1)
    scene.core.version = 1
    scene.do(ev.Published(weights))
    offer = scene.take(ev.OfferTransfer)[-1]
    scene.do(ev.Installed("e0", weights), ev.TransferReady(offer.epoch), ev.Installed("e1", weights))
    scene.do(ev.TransferFailed(offer.epoch, "e0"))
    assert scene.core.workers["e0"].installing is None


# --- env workers -----------------------------------------------------------------------------------


def two_envs(**rules) -> tuple[Scene, Clock, dict[str, list[ev.Play]]]:
    scene = Scene(env_slots=8, steps=100, groups_per_step=4, play_s=30.0, **rules)
    clock = Clock(scene)
    scene.do(ev.Joined("env-2", "env", "cpu-7", capacity=8))
    plays: dict[str, list[ev.Play]] = {"env": [], "env-2": []}
    for play in scene.take(ev.Play):
        plays[play.worker].append(play)
    return scene, clock, plays


def test_an_env_worker_that_answers_nothing_is_set_aside_and_its_plays_are_issued_elsewhere():
    scene, clock, plays = two_envs()
    assert len(plays["env"]) == len(plays["env-2"]) == 8
    clock.wait(60, lambda: scene.turn(plays["env"][0], turn=int(clock.now)))
    assert warnings(scene, EventKind.WORKER_ASIDE) == ["env-2"], "the other one owes as many, but it moves"
    cancelled = {c.trajectory for c in scene.take(ev.CancelPlay) if c.worker == "env-2"}
    assert cancelled == {play.trajectory for play in plays["env-2"]}
    assert all(scene.core.trajectories.all[name].issue == 1 for name in cancelled)


def test_a_step_may_take_as_long_as_its_task_allows():
    scene, clock, _plays = two_envs(tasks={"a": TaskRules(1.0, step_s=1000.0)})
    clock.wait(1000)
    assert not warnings(scene, EventKind.WORKER_ASIDE) and scene.core.tally.dropped == {}
    clock.wait(400)
    assert sorted(warnings(scene, EventKind.WORKER_ASIDE))[:2] == ["env", "env-2"]


def test_a_play_that_a_busy_env_worker_has_lost_is_played_again():
    scene, clock, plays = two_envs()
    lost, *others = plays["env"]

    def live() -> None:
        for play in [*others, *plays["env-2"]]:
            scene.do(ev.TurnWanted(play.trajectory, 0, int(clock.now)))
        for request in scene.take(ev.Generate):
            scene.do(ev.Generated(request.request, 0, 0))

    clock.wait(120, live)
    assert scene.core.tally.dropped == {DropReason.PLAY_TIMEOUT: 1}
    assert scene.core.trajectories.all[lost.trajectory].issue == 1
    assert not warnings(scene, EventKind.WORKER_ASIDE)


def test_a_blocked_main_loop_is_noticed_if_others_wait_for_it():
    scene, _clock, _plays = two_envs()
    scene.do(ev.Beat("trainer", age_s=1e4), ev.Beat("reward", age_s=1e4), ev.Beat("engine-c", age_s=1e4))
    scene.do(ev.Beat("env-2", age_s=29.0))
    assert not warnings(scene, EventKind.WORKER_ASIDE)
    scene.do(ev.Beat("env-2", age_s=31.0))
    assert warnings(scene, EventKind.WORKER_ASIDE) == ["env-2"]


def test_a_controller_that_was_blocked_itself_blames_nobody():
    scene, _clock, _ = two_envs()
    scene.do(ev.Tick(1e4), ev.Tick(1e4 + 6), ev.Tick(2e4))
    assert not warnings(scene, EventKind.WORKER_ASIDE) and scene.core.tally.dropped == {}


# --- reward workers ------------------------------------------------------------------------------


def test_a_score_that_is_overdue_goes_to_another_reward_worker():
    scene = Scene()
    clock = Clock(scene)
    scene.do(ev.Joined("reward-2", "reward", capacity=100))
    for play in scene.take(ev.Play)[:4]:
        scene.turn(play)
        scene.do(ev.Ended(play.trajectory, 0, None, 1))
    stuck = [c for c in scene.out if isinstance(c, ev.Score) and c.worker == "reward"]

    def live() -> None:
        for score in [c for c in scene.take(ev.Score) if c.worker == "reward-2"]:
            scene.do(ev.Scored(score.trajectory, score.issue, 1.0, True))

    clock.wait(70, live)
    assert warnings(scene, EventKind.WORKER_ASIDE) == ["reward"] and stuck
    assert scene.core.tally.tasks["a"].trajectories == 4


# --- the way back ----------------------------------------------------------------------------------


def test_a_slow_worker_comes_back_when_it_answers_and_a_repeat_offender_on_trial_after_a_pause():
    scene, clock, _ = two_envs()
    scene.do(ev.Beat("env-2", age_s=31.0))
    assert "env-2" not in scene.core.workers
    scene.do(ev.Beat("env-2", work=1), ev.Tick(clock.now))
    assert warnings(scene, EventKind.WORKER_BACK) == ["env-2"]
    assert scene.core.workers["env-2"].capacity == 8
    scene.do(ev.Beat("env-2", age_s=31.0), ev.Beat("env-2", work=1))
    clock.wait(50)
    assert "env-2" not in scene.core.workers, "the second time it waits a minute, although it moves"
    scene.out.clear()
    clock.wait(20)
    on_trial = scene.core.workers["env-2"]
    assert on_trial.capacity == on_trial.load == 1
    (probe,) = [c for c in scene.take(ev.Play) if c.worker == "env-2"]
    scene.do(ev.TurnWanted(probe.trajectory, probe.issue, 0))
    assert on_trial.capacity == on_trial.load == 8


def test_an_engine_on_trial_gets_one_turn_until_it_answers():
    scene, clock, _requests = two_engines()
    engine = scene.core.workers["e1"]
    scene.core._set_aside(engine, "test")
    clock.wait(31)
    (back,) = [w for w in scene.core.workers.values() if w.name == "e1"]
    scene.do(ev.TransferReady(scene.take(ev.OfferTransfer)[-1].epoch), ev.Installed("e1", WeightsId(1, 0)))
    for again in scene.take(ev.AskAgain):
        scene.do(ev.TurnWanted(again.trajectory, 0, 0))
    sent = [c for c in scene.take(ev.Generate) if c.engine == "e1"]
    assert back.capacity == 1 and len(sent) == 1
    scene.do(ev.Generated(sent[0].request, 0, 0))
    assert back.capacity == 100


def test_a_new_process_is_used_at_once():
    scene, _clock, _ = two_envs()
    scene.do(ev.Beat("env-2", age_s=31.0), ev.Lost("env-2"), ev.Joined("env-2", "env", capacity=8))
    assert scene.core.workers["env-2"].capacity == 8 and not scene.core.bench.aside


# --- failures ------------------------------------------------------------------------------------


def fail_all(scene: Scene, worker: str, reason: DropReason, until) -> int:
    """Every play at this worker fails; those elsewhere get their first turn. Returns how many failed."""
    failed = 0
    for now in range(1, 200):
        for play in scene.take(ev.Play):
            if until():
                return failed
            if play.worker == worker:
                failed += 1
                scene.do(ev.Ended(play.trajectory, play.issue, reason, 0, "no such file"))
            else:
                scene.do(ev.TurnWanted(play.trajectory, play.issue, 0))
        scene.do(ev.Tick(float(now)))
    return failed


def test_one_bad_env_node_is_set_aside_and_no_task_is_quarantined():
    """A worker that fails is always the least busy one: it used to get every play, until no task was left."""
    scene = Scene(tasks={"a": TaskRules(1), "b": TaskRules(1)}, env_slots=100, groups_per_step=8, group_size=8)
    scene.do(ev.Joined("bad", "env", "cpu-9", capacity=8))
    failed = fail_all(scene, "bad", DropReason.RESET_FAILED, lambda: False)
    assert "bad" in scene.core.bench.aside or scene.core.workers["bad"].full_capacity == 8, "aside, or on trial"
    assert not any(task.quarantined for task in scene.core.tally.tasks.values()) and not scene.core.stopped
    first = next(c for c in scene.out if isinstance(c, ev.Warn) and c.what == EventKind.WORKER_ASIDE)
    assert first.detail.startswith("env on node cpu-9: task ") and "8 resets in a row failed" in first.detail
    assert failed < 8 + 8 + 8 + 8, "two tasks, then a single play for each trial"


def test_a_task_that_fails_at_two_workers_is_quarantined_and_the_workers_go_on():
    scene = Scene(tasks={"a": TaskRules(1), "b": TaskRules(1)}, env_slots=64, groups_per_step=8)
    scene.do(ev.Joined("env-2", "env", capacity=64))
    for now in range(1, 100):
        for play in scene.take(ev.Play):
            if play.task == "a":
                scene.do(ev.Ended(play.trajectory, play.issue, DropReason.RESET_FAILED, 0, "bug"))
            else:
                scene.do(ev.TurnWanted(play.trajectory, play.issue, 0))
        scene.do(ev.Tick(float(now)))
    assert scene.core.tally.tasks["a"].quarantined and not scene.core.tally.tasks["b"].quarantined
    assert {"env", "env-2"} <= set(scene.core.workers) and not scene.core.bench.aside
    assert len(warnings(scene, EventKind.WORKER_ASIDE)) == 1


def test_a_failing_worker_is_not_the_first_choice():
    scene, clock, plays = two_envs()
    bad, good = plays["env-2"][:2], plays["env"][:2]
    scene.do(*(ev.Ended(p.trajectory, 0, DropReason.RESET_FAILED) for p in bad))
    for play in good:
        scene.turn(play)
        scene.do(ev.Ended(play.trajectory, 0, None, 1))
    scene.out.clear()
    clock.wait(1)
    assert scene.take(ev.Play)[0].worker == "env"


@pytest.mark.parametrize("turn", [1, 3])
def test_a_step_that_always_raises_quarantines_its_task(turn):
    """Its resets work, and so may its first turns."""
    scene = Scene(tasks={"a": TaskRules(1), "b": TaskRules(1)}, groups_per_step=8)
    failed = 0
    for now in range(1, 60):
        for play in [p for p in scene.take(ev.Play) if p.task == "a"]:
            for k in range(turn):
                scene.do(ev.TurnWanted(play.trajectory, play.issue, k))
                for request in scene.take(ev.Generate):
                    scene.do(ev.Generated(request.request, 0, 0))
            failed += scene.core.is_expected(play.trajectory, play.issue)
            scene.do(ev.Ended(play.trajectory, play.issue, DropReason.ENV_ERROR, turn, "KeyError: 'x'"))
        scene.do(ev.Tick(float(now)))
    task = scene.core.tally.tasks["a"]
    assert task.quarantined and failed == 8
    assert task.quarantine_reason.startswith("8 plays in a row failed, the last with env_error: KeyError: 'x'")


def test_a_reward_that_always_raises_quarantines_its_task():
    scene = Scene(tasks={"a": TaskRules(1), "b": TaskRules(1)}, groups_per_step=8, reward_retries=1)
    for play in [p for p in scene.take(ev.Play) if p.task == "a"]:
        scene.turn(play)
        scene.do(ev.Ended(play.trajectory, play.issue, None, 1))
    failed = 0
    for _ in range(10):
        for score in scene.take(ev.Score):
            failed += score.trajectory in scene.core.trajectories.all
            scene.do(ev.ScoreFailed(score.trajectory, score.issue, score.worker, "ValueError: no"))
    assert scene.core.tally.tasks["a"].quarantined and failed == 8 * 2
    assert scene.core.tally.tasks["a"].quarantine_reason.startswith("16 scores in a row failed")


@pytest.mark.parametrize("expected", [1, 2])
def test_the_first_env_worker_after_a_start_is_no_witness_against_a_task(expected):
    """A bad node that joins before the good ones would have all tasks quarantined, and the run failed."""
    scene = Scene(tasks={"a": TaskRules(1), "b": TaskRules(1)}, groups_per_step=8, num_envs=expected)
    clock = Clock(scene)

    def fail() -> None:
        for play in [p for p in scene.take(ev.Play) if p.task == "a"]:
            scene.do(ev.Ended(play.trajectory, play.issue, DropReason.RESET_FAILED))

    clock.wait(1, fail)
    is_alone = expected == 1
    assert scene.core.tally.tasks["a"].quarantined == is_alone and ("env" in scene.core.bench.aside) != is_alone
    clock.wait(400, fail)
    assert scene.core.tally.tasks["a"].quarantined, "no other came"


def test_a_clock_that_jumps_makes_the_only_env_worker_no_witness():
    """A controller that was blocked for a while has not waited for the other workers."""
    scene = Scene(tasks={"a": TaskRules(1), "b": TaskRules(1)}, groups_per_step=8, num_envs=2)
    clock = Clock(scene)
    clock.now += 1000.0
    scene.do(ev.Tick(clock.now))
    for play in [p for p in scene.take(ev.Play) if p.task == "a"]:
        scene.do(ev.Ended(play.trajectory, play.issue, DropReason.RESET_FAILED))
    assert "env" in scene.core.bench.aside and not scene.core.tally.tasks["a"].quarantined


# --- tasks that come back --------------------------------------------------------------------------


def test_a_quarantined_task_is_tried_again_and_the_pause_doubles():
    scene = Scene(tasks={"a": TaskRules(1), "b": TaskRules(1)}, quarantine_after=1, probe_s=60.0, steps=10, alpha=0)
    clock = Clock(scene)
    times: list[float] = []
    for step in range(3):
        scene.do(ev.BatchWanted(step))
        for play in [c for c in scene.out if isinstance(c, ev.Play) and c.task == "a"]:
            scene.out.remove(play)
            scene.do(ev.Ended(play.trajectory, play.issue, DropReason.RESET_FAILED))
        assert scene.core.tally.tasks["a"].quarantined
        began_s = clock.now
        while scene.core.tally.tasks["a"].quarantined and clock.now < 1000:
            clock.wait(1)
        times.append(clock.now - began_s)
        for _ in range(10):
            for play in scene.take(ev.Play):
                scene.finish(play, version=step)
            if any(c.last for c in scene.take(ev.SendChunk)):
                scene.do(ev.Committed(step + 1))
                scene.publish(step + 1)
                break
    assert times == [60.0, 120.0, 240.0]
    assert warnings(scene, EventKind.TASK_RETURNED) == ["a"] * 3


def test_a_task_that_comes_back_gets_its_share_of_the_steps_to_come():
    scene = Scene(tasks={"a": TaskRules(1), "b": TaskRules(1)}, quarantine_after=1, probe_s=5.0, alpha=0)
    clock = Clock(scene)
    play = next(p for p in scene.take(ev.Play) if p.task == "a")
    scene.do(ev.Ended(play.trajectory, 0, DropReason.RESET_FAILED))
    assert scene.core.mix.quota(0) == {"a": 0, "b": 2}
    clock.wait(6)
    assert scene.core.mix.quota(0) == {"a": 0, "b": 2} and scene.core.mix.quota(1) == {"a": 1, "b": 1}


# --- weights and updates ---------------------------------------------------------------------------


def test_a_late_duplicate_of_published_does_not_take_engines_back():
    scene = Scene()
    scene.core.version = 2
    scene.publish(2)
    scene.do(ev.Published(WeightsId(1, 1)), ev.Published(WeightsId(1, 0)))
    assert scene.core.publisher.newest == WeightsId(1, 2)
    assert scene.core.publisher.transfer is None, "nothing is sent"


def one_step(scene: Scene, step: int, **committed) -> None:
    scene.do(ev.BatchWanted(step))
    for _ in range(10):
        if any(c.last for c in scene.take(ev.SendChunk)):
            break
        for play in scene.take(ev.Play):
            scene.finish(play, version=step)
    scene.do(ev.Committed(step + 1, **committed))
    scene.publish(step + 1)


def test_skipped_updates_are_counted_and_told_and_end_the_run_if_they_go_on():
    scene = Scene(steps=20, alpha=0, max_skipped_updates=3)
    for step, is_skipped in enumerate([True, False, True, True, True]):
        one_step(scene, step, is_skipped=is_skipped)
    assert scene.core.tally.updates_skipped == 4 and not scene.core.stopped
    assert warnings(scene, EventKind.UPDATE_SKIPPED) == ["step 1", "step 3"]
    one_step(scene, 5, is_skipped=True)
    (stop,) = scene.take(ev.StopRun)
    assert stop.state == "failed" and stop.reason.startswith("4 updates in a row were skipped because their gradients")
    assert scene.take(ev.RecordStep)[-1].version == 6, "the ledger has every step"


# --- whole runs --------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["engine", "env", "reward", "relay"])
@pytest.mark.parametrize("has_supervisor", [True, False])
def test_simulated_runs_survive_a_hung_worker(role, has_supervisor):
    """With a supervisor the worker is replaced. Without one, another worker of its role must do."""
    num_runs = 0
    for seed in range(40):
        rng = random.Random(seed)
        world = make_world(rng.choice(sorted(MODES)), seed, rng.choice([0.0, 0.1]), rng.random() < 0.5, 0)
        victims = [m.name for m in world.members if m.role == role]
        if not has_supervisor and (len(victims) < 2 or role == "relay"):
            continue
        if not has_supervisor:
            world._do_Replace = lambda command: None
        name = rng.choice(victims)
        world.after(rng.uniform(0.5, 4.0), lambda world=world, name=name: world.hang(name))
        assert world.run(until_s=3000.0) == "finished", (seed, name)
        check_ledger(world)
        num_runs += 1
    assert num_runs or role == "relay"
