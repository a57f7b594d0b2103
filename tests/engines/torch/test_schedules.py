"""Whatever is added, aborted, forgotten and installed in whatever order: every result is right, and nothing is lost."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TRAJECTORIES = [f"t{i}" for i in range(3)]

turns = st.tuples(
    st.just("turn"), st.sampled_from(TRAJECTORIES), st.integers(1, 16), st.integers(1, 16), st.sampled_from([0.0, 1.0])
)
aborts = st.tuples(st.just("abort"), st.sampled_from(TRAJECTORIES))
forgets = st.tuples(st.just("forget"), st.sampled_from(TRAJECTORIES))
installs = st.tuples(st.just("install"), st.integers(0, 2))
steps = st.tuples(st.just("step"), st.integers(1, 8))
actions = st.one_of(turns, turns, turns, steps, steps, steps, aborts, forgets, installs)
schedules = st.lists(actions, min_size=15, max_size=45)
sizes = st.fixed_dictionaries(
    {"kv_slots": st.integers(1, 5), "max_running": st.integers(1, 4), "max_prefill_tokens": st.integers(1, 40)}
)


class Play:
    """Applies a schedule and remembers what each open request must come to."""

    def __init__(self, driver, ids) -> None:
        self.driver = driver
        self.ids = ids
        self.open: dict[str, int] = {}  # trajectory -> its request in flight
        self.temperature: dict[int, float] = {}

    def turn(self, trajectory: str, size: int, max_new: int, temperature: float) -> None:
        """Takes the place of the trajectory's open request if there is one."""
        new = self.ids(len(self.temperature), size)
        if trajectory not in self.driver.tokens:
            new = np.concatenate([self.ids(0, 20), new])  # prompts begin alike
        request = self.driver.turn(trajectory, new, max_new, temperature)
        if request is None:
            request = self.driver.turn(trajectory, new, max_new, temperature, full=True)
        self.open[trajectory] = request
        self.temperature[request] = temperature

    def abort(self, trajectory: str) -> None:
        if trajectory in self.open:
            self.driver.engine.abort(self.open.pop(trajectory))

    def forget(self, trajectory: str) -> None:
        self.open.pop(trajectory, None)
        self.driver.engine.forget([trajectory])
        self.driver.tokens.pop(trajectory, None)

    def install(self, version: int) -> None:
        self.driver.install(version)

    def step(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()
        self.collect()

    def collect(self) -> None:
        for request in self.driver.done:
            done = self.driver.check(request, self.temperature[request])
            assert self.open.pop(done.trajectory) == request, "an aborted or superseded request yields nothing"
            assert len(done.record) > 0
        self.driver.done.clear()


def check_rows(engine) -> None:
    rows = engine.rows
    for row, held in enumerate(rows.held):
        assert held is None or (held.row == row and rows.get(held.trajectory) is held)
        if row < engine.num_running:
            assert held is not None and held.live is not None and rows.cached[row] < rows.tokens[row]
        if row < engine.num_decoding:
            assert rows.cached[row] == rows.tokens[row] - 1
    assert {r for r, held in enumerate(rows.held) if held is None} == rows._free
    assert 0 <= engine.num_decoding <= engine.num_running
    assert np.all(rows.cached <= rows.tokens)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(schedule=schedules, size=sizes)
def test_random_schedules(qwen, drive, ids, schedule, size):
    play = Play(drive(qwen, max_len=120, **size), ids)
    play.install(0)
    for name, *arguments in schedule:
        if name == "turn" and len(play.driver.tokens.get(arguments[0], ())) > 80:
            play.forget(arguments[0])
        getattr(play, name)(*arguments)
        check_rows(play.driver.engine)
    play.driver.run()
    play.collect()
    assert not play.open, "every request that was not aborted has ended"
