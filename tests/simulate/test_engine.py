"""The token clock of a simulated engine, against iterations counted one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.estimate.roofline import Pace
from rollart_hpc.simulate.clock import Clock
from rollart_hpc.simulate.engine import Phase, Request, SimEngine

PACE = Pace(
    prefill_s=0.001, decode_s=0.002, attention_s=0.0, weights_s=0.005, kv_s=0.00001, exchange_s=0.0, fixed_s=0.01
)


class Bench:
    def __init__(self, kv_tokens: int = 10_000, **options: int) -> None:
        self.clock, self.ended = Clock(), dict[int, float]()
        self.engine = SimEngine(
            self.clock,
            PACE,
            kv_tokens=kv_tokens,
            max_running=options.get("max_running", 64),
            max_prefill=options.get("max_prefill", 512),
            on_done=lambda request: self.ended.__setitem__(request.id, self.clock.now),
        )
        self.engine.resume(0)

    def add(self, number: int, prompt: int, answer: int, trajectory: str = "") -> Request:
        request = Request(number, trajectory or f"t{number}", prompt, answer)
        self.engine.add(request)
        return request

    def run(self, until_s: float = 1e9) -> None:
        self.clock.run(until_s, lambda: False)


def test_one_request_by_hand() -> None:
    bench = Bench()
    bench.add(1, prompt=100, answer=5)
    bench.run()
    prefill = 100 * 0.001 + 0.01
    decode = sum(max(0.002, 0.005 + 0.00001 * (101 + i)) + 0.01 for i in range(4))
    assert bench.ended[1] == pytest.approx(prefill + decode, rel=1e-3)
    assert bench.engine.spent.prefill_tokens == 100
    assert bench.engine.spent.decode_tokens == pytest.approx(4)


def test_the_next_turn_finds_its_prefix() -> None:
    bench = Bench()
    bench.add(1, 100, 5, "t")
    bench.run()
    request = bench.add(2, 125, 5, "t")
    bench.run()
    assert request.prefilled == 20
    assert bench.engine.spent.cached_tokens == 105
    bench.engine.forget("t")
    assert bench.engine.kv_used == pytest.approx(0)


def test_new_weights_void_all_kv() -> None:
    bench = Bench()
    request = bench.add(1, 100, 50)
    bench.run(0.5)
    bench.engine.suspend()
    bench.engine.resume(1)
    bench.run()
    assert (request.first_version, bench.engine.version) == (0, 1)
    assert request.prefilled > 200
    assert request.made == pytest.approx(50)


def test_without_room_the_last_one_waits_and_all_end() -> None:
    bench = Bench(kv_tokens=400)
    for number in range(3):
        bench.add(number, 100, 100)
    bench.run()
    assert len(bench.ended) == 3
    assert bench.engine.spent.preempted
    assert bench.engine.kv_used <= 400


def test_the_least_recent_prefix_is_evicted() -> None:
    bench = Bench(kv_tokens=400)
    for number in range(4):
        bench.add(number, 100, 20)
        bench.run()
    assert bench.engine.spent.evicted == 1
    assert bench.add(9, 130, 5, "t0").left == 130
    bench.run()


def test_an_aborted_request_frees_its_kv_wherever_it_is() -> None:
    bench = Bench(max_running=2)
    requests = [bench.add(number, 100, 100) for number in range(3)]
    bench.run(0.3)
    assert {each.phase for each in requests} == {Phase.DECODING, Phase.WAITING}
    for each in requests:
        bench.engine.abort(each)
    bench.run()
    assert not bench.ended
    assert bench.engine.kv_used == pytest.approx(0, abs=1e-6)


def test_a_prompt_is_prefilled_in_chunks_while_others_decode() -> None:
    bench = Bench(max_prefill=64)
    first = bench.add(1, 10, 200)
    bench.run(0.1)
    bench.add(2, 640, 5)
    bench.run(1.0)
    assert first.phase is Phase.DECODING
    bench.run()
    assert set(bench.ended) == {1, 2}


requests = st.lists(
    st.tuples(st.floats(0, 3), st.integers(1, 300), st.integers(1, 200), st.booleans()), min_size=1, max_size=20
)


@settings(max_examples=50, deadline=None)
@given(requests, st.integers(1, 8), st.integers(600, 3000), st.floats(0.1, 4))
def test_every_request_ends_once_and_nothing_is_left(
    wanted: list[tuple[float, int, int, bool]], running: int, kv_tokens: int, install_s: float
) -> None:
    bench = Bench(kv_tokens, max_running=running)
    aborted = set()
    for number, (at_s, prompt, answer, is_aborted) in enumerate(wanted):
        request = Request(number, f"t{number}", prompt, answer)
        bench.clock.after(at_s, bench.engine.add, request)
        if is_aborted:
            aborted.add(number)
            bench.clock.after(at_s + 0.2, lambda r=request: r.phase is not Phase.OVER and bench.engine.abort(r))
    bench.clock.after(install_s, bench.engine.suspend)
    bench.clock.after(install_s + 0.1, bench.engine.resume, 1)
    bench.run()
    assert set(bench.ended) | aborted == set(range(len(wanted)))
    for number in range(len(wanted)):
        bench.engine.forget(f"t{number}")
    assert bench.engine.kv_used == pytest.approx(0, abs=1e-3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.001, 5.0), max_size=10), st.integers(1, 500))
def test_interruptions_change_nothing(at: list[float], answer: int) -> None:
    """Catching up in between must not move the end."""
    plain, watched = Bench(), Bench()
    for bench in (plain, watched):
        bench.add(1, 50, answer)
    for seconds in at:
        watched.clock.after(seconds, watched.engine.abort, Request(99, "x", 1, 1))
    plain.run()
    watched.run()
    assert watched.ended[1] == pytest.approx(plain.ended[1], rel=1e-6)
