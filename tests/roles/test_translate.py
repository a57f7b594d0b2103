"""Messages into events: what the core needs is peeked at, what does not fit is refused."""

from __future__ import annotations

import numpy as np

from rollart_hpc.flow import events as ev
from rollart_hpc.roles.translate import event_of, message_of
from rollart_hpc.types import WeightsId
from rollart_hpc.vocabulary import DropReason
from rollart_hpc.wire import messages as ms

GENERATED = ms.Generated(7, "t", 10, 3)


def frames(*versions: int, ids: int | None = None) -> list[bytes]:
    count = len(versions) if ids is None else ids
    return [bytes(4 * count), bytes(4 * len(versions)), np.array(versions, np.int32).tobytes()]


def test_the_first_and_last_version_of_an_answer_are_seen():
    assert event_of("e", GENERATED, frames(4, 4, 5)) == ev.Generated(7, 4, 5, 10, 3)


def test_an_answer_without_tokens_is_told_apart():
    assert event_of("e", GENERATED, frames()) == ev.Generated(7, -1, -1, 10, 3)


def test_what_a_failure_says_reaches_the_core():
    ended = ms.Ended("t", 1, "env_error", "RuntimeError: my bug", 2, 0, [])
    assert event_of("env-0", ended, []) == ev.Ended("t", 1, DropReason.ENV_ERROR, 2, "RuntimeError: my bug")
    assert event_of("reward-0", ms.ScoreFailed("t", 1, "why"), []) == ev.ScoreFailed("t", 1, "reward-0", "why")


def test_a_play_ends_whatever_word_its_worker_has_for_it():
    assert event_of("env-0", ms.Ended("t", 1, "done", "", 2, 0, []), []) == ev.Ended("t", 1, None, 2)
    strange = event_of("env-0", ms.Ended("t", 1, "on_fire", "help", 2, 0, []), [])
    assert strange == ev.Ended("t", 1, DropReason.UNKNOWN_REASON, 2, "on_fire: help")


def test_a_heartbeat_is_no_event():
    assert event_of("e", ms.Heartbeat(0.0), []) is None
    assert event_of("e", ms.Heartbeat(0.0, 4.0), []) is None
    assert event_of("e", ms.Heartbeat(0.0, 6.0), []) == ev.Beat("e", 6.0)
    assert event_of("e", ms.Heartbeat(0.0, 0.0, 12), []) == ev.Beat("e", work=12)


def test_a_warned_process_tells_the_core_that_the_end_is_near():
    assert event_of("env-0", ms.Warned("env-0"), []) == ev.EndNear("env-0")


def test_weights_travel_as_attempt_and_version():
    assert message_of(ev.Install("e", WeightsId(2, 5))) == ("e", ms.Install(2, 5))
    assert event_of("r", ms.Held(2, 5, 100, 0.1), []) == ev.Held("r", WeightsId(2, 5))
