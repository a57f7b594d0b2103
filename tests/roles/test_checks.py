"""Messages that don't fit, from workers with a key: a counted refusal or a failed trajectory. The run goes on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rollart_hpc import __version__
from rollart_hpc.vocabulary import DropReason
from rollart_hpc.wire import messages as ms
from tests.roles.stub_run import CAST, TOKENS, StubRun, record, stub_run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[StubRun]:
    with stub_run(tmp_path / "run") as made:
        yield made
        goes_on(made)


def goes_on(run: StubRun) -> None:
    """Two more steps are trained."""
    goal = run.core.version + 2
    for _ in range(5000):
        if run.core.version >= goal:
            return
        for name in CAST:
            if name not in run.controller.members.alive:
                run.join(name)
        run.answer(50)
        run.tick(20.0)  # retries are due
    raise AssertionError(f"stuck at version {run.core.version}: {run.hub.counters} {run.core.tally.dropped}")


def dropped(run: StubRun) -> int:
    return run.core.tally.dropped[DropReason.MALFORMED]


# --- engines ---------------------------------------------------------------------------------


def test_an_answer_about_another_trajectory_fails_its_own(run: StubRun) -> None:
    engine, wanted = run.next(ms.Generate)
    run.say(engine, ms.Generated(wanted.request, "another", 2, TOKENS), *record(0))
    assert run.hub.counters["malformed"] == 1 and dropped(run) == 1
    assert wanted.request not in run.core.trajectories.requests


@pytest.mark.parametrize(
    "frames",
    [[], record(0)[:2], [b"abc"] * 3, [*record(0)[:2], b""], record(0, TOKENS + 1), record(10**9), record(-2)],
    ids=["none", "two", "odd", "unequal", "too many tokens", "a version of the future", "no version"],
)
def test_an_answer_whose_arrays_do_not_fit_fails_the_trajectory(run: StubRun, frames: list[bytes]) -> None:
    engine, wanted = run.next(ms.Generate)
    run.say(engine, ms.Generated(wanted.request, wanted.trajectory, 2, TOKENS), *frames)
    assert run.hub.counters["malformed"] == 1 and dropped(run) == 1


def test_an_answer_of_an_engine_that_was_not_asked_changes_nothing(run: StubRun) -> None:
    engine, wanted = run.next(ms.Generate)
    other = "engine-1" if engine == "engine-0" else "engine-0"
    run.say(other, ms.Generated(wanted.request, wanted.trajectory, 2, TOKENS), *record(0))
    assert run.hub.counters["forged"] == 1 and wanted.request in run.core.trajectories.requests
    run.say(engine, ms.Generated(wanted.request, wanted.trajectory, 2, TOKENS), *record(0))
    assert not dropped(run)


def test_a_prefix_that_is_missing_again_fails_the_trajectory(run: StubRun) -> None:
    """Neither an engine that misses the prefix of a whole turn nor an env worker that never sends one can go on."""
    engine, wanted = run.next(ms.Generate)
    assert wanted.full
    run.say(engine, ms.PrefixMissing(wanted.request))
    assert dropped(run) == 1


def test_a_turn_that_stays_without_its_tokens_fails_the_trajectory(run: StubRun) -> None:
    while True:
        engine, wanted = run.next(ms.Generate)
        if not wanted.full:
            break
        run._answer(engine, wanted)
    run.say(engine, ms.PrefixMissing(wanted.request))
    env, asked = run.next(ms.Resend)
    run.say(env, ms.TurnWanted(asked.trajectory, asked.issue, asked.turn, 6, 0, TOKENS, False), bytes(8))
    assert dropped(run) == 1
    assert run.next(ms.Cancel)[1].trajectory == asked.trajectory


# --- environments ----------------------------------------------------------------------------


def test_a_turn_with_a_torn_frame_fails_the_trajectory(run: StubRun) -> None:
    env, play = run.next(ms.Play)
    run.say(env, ms.TurnWanted(play.trajectory, play.issue, 0, 0, 0, TOKENS, True), b"abc")
    assert run.hub.counters["malformed"] == 1 and dropped(run) == 1
    assert not any(isinstance(message, ms.Generate) for _, message, frames in run.hub.sent if frames == (b"abc",))


def ending(run: StubRun) -> tuple[str, ms.Generated, int]:
    while True:
        env, answer = run.next(ms.Generated)
        trajectory = run.core.trajectories.all[answer.trajectory]
        if trajectory.turn == 1:
            return env, answer, trajectory.issue
        run._answer(env, answer)


IDS = np.full(TOKENS, 100, np.int32).tobytes()
NAN = np.full(TOKENS, math.nan, np.float32).tobytes()


@pytest.mark.parametrize(
    ("lengths", "frames"),
    [
        ([TOKENS], []),
        ([TOKENS + 1], [b"\x80", *record(0)]),
        ([0, TOKENS], [b"\x80", *record(0)]),
        ([-1, TOKENS + 1], [b"\x80", *record(0)]),
        ([], [b"\x80", b"", b"", b""]),
        ([TOKENS], [b"\x80", IDS, *record(0)[1:]]),
        ([TOKENS], [b"\x80", record(0)[0], NAN, record(0)[2]]),
        ([TOKENS], [b"\x80", *record(10**9)]),
        ([TOKENS], [b"\x80", *record(-7)]),
    ],
    ids=["no frames", "too long", "empty", "negative", "nothing", "unknown id", "nan", "future", "no version"],
)
def test_an_end_that_can_not_be_trained_fails_the_trajectory(run: StubRun, lengths, frames) -> None:  # type: ignore[no-untyped-def]
    env, answer, issue = ending(run)
    run.say(env, ms.Ended(answer.trajectory, issue, "done", "", 2, TOKENS, lengths), *frames)
    assert run.hub.counters["malformed"] == 1 and dropped(run) == 1


def test_an_end_with_tokens_older_than_any_answer_fails_the_trajectory(run: StubRun) -> None:
    """They would be trained beyond alpha: the core counts the age of the answers that it saw."""
    env, answer, issue = ending(run)
    trajectory = run.core.trajectories.all[answer.trajectory]
    trajectory.first_version = trajectory.last_version = 1
    run.say(env, ms.Ended(answer.trajectory, issue, "done", "", 2, TOKENS, [TOKENS]), b"\x80", *record(0))
    assert run.hub.counters["malformed"] == 1 and dropped(run) == 1


def test_an_end_of_a_worker_that_does_not_play_it_changes_nothing(run: StubRun) -> None:
    env, answer, issue = ending(run)
    other = "env-1" if env == "env-0" else "env-0"
    run.say(other, ms.Ended(answer.trajectory, issue, "env_error", "", 2, 0, []))
    assert run.hub.counters["forged"] == 1
    run._answer(env, answer)


# --- rewards ---------------------------------------------------------------------------------


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_a_failure_of_the_reward_worker(run: StubRun, reward: float) -> None:
    worker, wanted = run.next(ms.ScoreWanted)
    run.say(worker, ms.Scored(wanted.trajectory, wanted.issue, reward, True, 0.1))
    assert run.core.trajectories.all[wanted.trajectory].score_failures == 1
    assert run.hub.counters["malformed"] == 1


@pytest.mark.parametrize("seconds", [1e300, math.nan])
def test_impossible_times_do_not_decode(run: StubRun, seconds: float) -> None:
    worker, wanted = run.next(ms.ScoreWanted)
    run.say(worker, ms.Scored(wanted.trajectory, wanted.issue, 1.0, True, seconds))
    assert run.hub.counters["bad_messages"] == 1
    run.say(worker, ms.Scored(wanted.trajectory, wanted.issue, 1.0, True, 0.1))


# --- training --------------------------------------------------------------------------------


def test_a_step_that_was_not_asked_for_can_not_enter_the_ledger(run: StubRun) -> None:
    before = run.core.version
    run.say("trainer", ms.Committed(before, before + 1, "p", "forged", {}, 0.1, 0.1))
    run.say("env-0", ms.Committed(before, before + 1, "p", "forged", {}, 0.1, 0.1))
    assert (run.hub.counters["forged"], run.hub.counters["forbidden"]) == (1, 1)
    goes_on(run)
    assert "forged" not in run.run.ledger.read_text()


def test_only_the_trainer_ends_a_checkpoint_and_only_the_supervisor_a_run(run: StubRun) -> None:
    _, save = run.next(ms.Save)
    for message in (ms.Saved(save.version, ""), ms.Drain("cancelled"), ms.Exited("trainer", "1", 0)):
        run.say("env-0", message)
    assert run.hub.counters["forbidden"] == 3
    assert run.core.saving == save.version and not run.core.draining and "trainer" in run.core.workers
    run.write_part(save)
    run.say("trainer", ms.Saved(save.version, ""))
    assert run.core.saved_version == save.version


@pytest.mark.parametrize("name", ["trainer", "engine-0"])
def test_only_a_relay_can_have_a_bad_copy(run: StubRun, name: str) -> None:
    """Another one was taken for a relay that needs a copy; when it left, the next transfer raised."""
    goes_on(run)
    run.say(name, ms.TransferFailed(0, "x"))
    run.tick()
    assert not any(isinstance(message, ms.TransferJoin) for _, message, _ in run.hub.sent)
    run.say(name, ms.Bye("x"))
    run.tick()


def test_weights_that_nobody_published_are_refused(run: StubRun) -> None:
    run.answer(200)
    for name, message in (
        ("trainer", ms.Published(1, run.core.version + 1, 1, 0.1)), ("engine-0", ms.Installed(1, 10**6, 1, 0.1, 0.1)),
        ("relay-compute", ms.Held(1, 10**6, 1, 0.1)),
    ):  # fmt: skip
        run.say(name, message)
    assert run.hub.counters["forged"] == 3


# --- who joins -------------------------------------------------------------------------------


def hello(role: str, name: str, attempt: int = 1, **more: int) -> ms.Hello:
    return ms.Hello(role, name, "cpu", "", 1, __version__, attempt, "evil", 1, **more)


def test_a_role_needs_its_own_key(run: StubRun) -> None:
    run.take(b"trainer-9#evil", "env", [ms.encode(hello("trainer", "trainer-9", version=0))])
    assert run.hub.counters["forbidden"] == 1 and "trainer-9" not in run.core.workers


@pytest.mark.parametrize("name", ["trainer", "supervisor", "engine-0"])
def test_a_name_of_another_role_can_not_be_taken_over(run: StubRun, name: str) -> None:
    run.take(f"{name}#evil".encode(), "env", [ms.encode(hello("env", name))])
    assert run.hub.counters["forbidden"] == 1
    assert run.controller.members.alive[name].role == CAST[name][0]


@pytest.mark.parametrize("wrong", [{"attempt": 2}, {"version": -5}, {"version": 1_000_000}, {"num_ranks": 2**64 - 1}])
def test_a_trainer_joins_only_as_announced(run: StubRun, wrong: dict[str, int]) -> None:
    goes_on(run)
    version = run.core.version
    evil = hello("trainer", "trainer", **{"version": version, **wrong})
    run.take(b"trainer#evil", "trainer", [ms.encode(evil)])
    assert run.hub.counters["refused_hellos"] + run.hub.counters["bad_messages"] == 1
    assert (run.core.version, run.core.attempt) == (version, 1)


def test_the_supervisor_announces_the_trainers_next_attempt(run: StubRun) -> None:
    goes_on(run)
    run.say("supervisor", ms.TrainerAttempt(2))
    run.take(b"trainer#evil", "trainer", [ms.encode(hello("trainer", "trainer", version=0))])
    assert run.hub.counters["refused_hellos"] == 1  # attempt 1 is over
    run.take(b"trainer#evil", "trainer", [ms.encode(hello("trainer", "trainer", attempt=2, version=0))])
    assert (run.core.version, run.core.attempt) == (0, 2)
    run.controller.checks.trainer_attempt = run.core.attempt = 1  # for the stub workers
