"""From the controller's start to the first step."""

from __future__ import annotations

from rollart_hpc.observe.phases import Phase, first_step_s, start_phases


def event(time_s, what):
    return {"kind": "event", "time_s": time_s, "what": what}


LINES = [
    event(0.5, "worker_joined"),
    event(4.0, "worker_joined"),
    event(4.5, "running"),
    {"kind": "validation", "time_s": 6.0, "task": "a"},
    {"kind": "validation", "time_s": 6.5, "task": "b"},
    {"kind": "step", "time_s": 9.0, "step": 0},
    event(20.0, "worker_joined"),
    {"kind": "step", "time_s": 30.0, "step": 1},
]


def test_phases_end_in_their_order_and_what_comes_after_the_first_step_does_not_count():
    assert start_phases(LINES) == [
        Phase("roles joined", 4.0),
        Phase("weights", 4.5),
        Phase("validated", 6.5),
        Phase("first step", 9.0),
    ]
    assert first_step_s(LINES) == 9.0


def test_a_worker_that_joins_late_does_not_hide_the_order():
    lines = [event(1.0, "worker_joined"), event(2.0, "running"), event(3.0, "worker_joined"), LINES[5]]
    assert [phase.name for phase in start_phases(lines)] == ["weights", "roles joined", "first step"]


def test_a_run_that_did_not_get_there_has_only_what_it_reached():
    assert start_phases([]) == []
    assert first_step_s(LINES[:3]) is None
