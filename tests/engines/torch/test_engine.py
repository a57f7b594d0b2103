"""Engine `torch` against a plain transformers forward: turns, installs, aborts, rows, determinism."""

from __future__ import annotations

import numpy as np
import pytest

from rollart_hpc.engines.contract import Request
from rollart_hpc.engines.torch.rows import MIN_SHARED_TOKENS
from rollart_hpc.errors import SiteError
from rollart_hpc.types import WeightsId
from rollart_hpc.wire.prefix import prefix_hash


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_are_those_of_a_plain_forward_over_several_turns(family, drive, ids, temperature):
    driver = drive(family)
    driver.install(1)
    for turn in range(3):
        requests = [driver.turn(f"t{i}", ids(10 * turn + i, 3 + 5 * i), 4 + 3 * i, temperature) for i in range(6)]
        driver.run()
        for request in requests:
            done = driver.check(request, temperature)
            assert done.num_decode_tokens == len(done.record) > 0
            assert (done.record.versions == 1).all()


def test_a_later_turn_prefills_only_what_is_new(qwen, drive, ids):
    driver = drive(qwen)
    driver.install(1)
    first = driver.turn("a", ids(1, 40), 6, temperature=0)
    driver.run()
    assert driver.done[first].num_prefill_tokens == 40
    before = driver.engine.counters.num_prefill_tokens
    second = driver.turn("a", ids(2, 7), 6, temperature=0)
    driver.run()
    done = driver.check(second, 0)
    assert done.num_prefill_tokens == 7 + 1  # the last sampled token was never run through the model before
    assert driver.engine.counters.num_prefill_tokens - before == 8


def test_kv_is_taken_row_by_row_and_given_back(qwen, drive, ids):
    driver = drive(qwen, kv_slots=3, max_len=100)
    driver.install(1)
    used = [driver.engine.kv_used_tokens]
    for name in "abcd":  # one more than there are rows
        driver.turn(name, ids(1, 9), 2)
        driver.run()
        used.append(driver.engine.kv_used_tokens)
    driver.engine.forget(["d"])
    assert driver.engine.kv_tokens == 300
    assert [*used, driver.engine.kv_used_tokens] == [0, 100, 200, 300, 300, 200]


def test_a_full_request_keeps_what_the_engine_holds(qwen, drive, ids):
    driver = drive(qwen)
    driver.install(1)
    driver.turn("a", ids(1, 40), 6, temperature=0)
    driver.run()
    again = driver.turn("a", ids(2, 7), 6, temperature=0, full=True)
    driver.run()
    assert driver.check(again, 0).num_prefill_tokens == 8


def test_a_shorter_prefix_cuts_the_row(qwen, drive, ids):
    """The answer of a turn was lost: the same turn is asked for again."""
    driver = drive(qwen)
    driver.install(1)
    driver.turn("a", ids(1, 20), 6, temperature=0)
    driver.run()
    held = driver.tokens["a"]
    lost = driver.turn("a", ids(2, 7), 6, temperature=0)
    driver.run()
    driver.tokens["a"] = held
    again = driver.turn("a", ids(2, 7), 6, temperature=0)
    driver.run()
    assert driver.check(again, 0).record.ids.tolist() == driver.done[lost].record.ids.tolist()
    assert driver.done[again].num_prefill_tokens == 1  # logits come from the last token


@pytest.mark.parametrize("full", [False, True])
def test_after_an_abort_the_turn_goes_on_with_other_tokens(qwen, drive, ids, full):
    driver = drive(qwen)
    driver.install(1)
    aborted = driver.turn("a", ids(1, 10), 30, temperature=0)
    for _ in range(9):
        driver.step()
    driver.engine.abort(aborted)
    request = driver.turn("a", ids(2, 6), 5, temperature=0, full=full)
    driver.run()
    assert driver.check(request, 0).num_prefill_tokens == 6  # all of the prompt's KV is there
    driver.tokens["a"] = ids(1, 3)
    other = driver.turn("a", ids(3, 12), 5, temperature=0, full=full)
    driver.run()
    assert driver.check(other, 0).num_prefill_tokens == 12


@pytest.mark.parametrize("max_prefill_tokens", [25, 1000])
def test_siblings_share_the_prefill_of_their_prompt(qwen, drive, ids, max_prefill_tokens):
    driver = drive(qwen, max_prefill_tokens=max_prefill_tokens)
    driver.install(0)
    prompt = ids(1, 60)
    for version, number in ((0, 0), (1, 0), (1, 10)):  # the rows' KV is void after an install, and shared again
        if not number:
            driver.install(version)
        before = driver.engine.counters.num_prefill_tokens
        names = [f"{version}-{number + i}" for i in range(5)]
        requests = [driver.turn(name, prompt, 6, temperature=i % 2) for i, name in enumerate(names)]
        other = driver.turn(f"other-{version}-{number}", np.concatenate([prompt[:30], ids(2, 10)]), 6, temperature=0)
        driver.run()
        for i, request in enumerate(requests):
            driver.check(request, i % 2)
        assert driver.check(other, 0).num_prefill_tokens <= 10
        prefilled = driver.engine.counters.num_prefill_tokens - before
        assert prefilled <= (60 if not number else 1) + 4 * MIN_SHARED_TOKENS + 10
        assert max_prefill_tokens < 60 or prefilled == (1 + 4 + 1 if number else 60 + 4 + 10)
        driver.engine.forget(names[1:])


def test_a_prompt_is_shared_with_the_trajectory_it_evicts(qwen, drive, ids):
    driver = drive(qwen, kv_slots=1)
    driver.install(1)
    requests = [driver.turn(name, ids(1, 30), 6, temperature=0) for name in "abc"]
    driver.run()
    assert [driver.check(r, 0).num_prefill_tokens for r in requests] == [30, 1, 1]
    assert driver.engine.counters.num_evicted == 2


def test_prefix_missing(qwen, drive, ids):
    driver = drive(qwen)
    driver.install(1)
    driver.turn("a", ids(1, 20), 4)
    driver.run()
    wrong = Request(99, "a", 20, prefix_hash(ids(2, 20)), False, ids(3, 4), 4)
    assert not driver.engine.add(wrong)
    longer = Request(99, "a", 90, prefix_hash(ids(2, 90)), False, ids(3, 4), 4)
    assert not driver.engine.add(longer)
    stranger = Request(99, "b", 20, prefix_hash(ids(1, 20)), False, ids(3, 4), 4)
    assert not driver.engine.add(stranger)
    driver.engine.forget(["a"])
    assert driver.turn("a", ids(3, 4)) is None
    request = driver.turn("a", ids(3, 4), full=True)
    driver.run()
    driver.check(request)
    assert driver.engine.counters.num_prefix_missing == 4


def test_install_in_mid_request_keeps_tokens_and_rebuilds(family, drive, ids):
    driver = drive(family)
    driver.install(0)
    requests = [driver.turn(f"t{i}", ids(i, 10 + 9 * i), 30) for i in range(5)]
    for version in (1, 2):
        for _ in range(7):
            driver.step()
        driver.install(version)
    driver.run()
    versions = [driver.check(r).record.versions for r in requests]
    assert any(len(set(v.tolist())) == 3 for v in versions)
    assert all((np.diff(v) >= 0).all() for v in versions)


def test_idle_trajectories_are_rebuilt_at_their_next_turn(qwen, drive, ids):
    driver = drive(qwen)
    driver.install(0)
    driver.turn("a", ids(1, 20), 5, temperature=0)
    driver.run()
    held = len(driver.tokens["a"])
    before = driver.engine.counters.num_prefill_tokens
    driver.install(1)
    assert driver.engine.counters.num_prefill_tokens == before
    request = driver.turn("a", ids(2, 3), 5, temperature=0)
    driver.run()
    assert driver.check(request, 0).num_prefill_tokens == held + 3


def test_abort_leaves_neighbours_untouched(qwen, drive, ids):
    def play(abort: bool):
        driver = drive(qwen)
        driver.install(1)
        requests = [driver.turn(f"t{i}", ids(i, 5 + i), 20, temperature=0) for i in range(6)]
        for _ in range(4):
            driver.step()
        if abort:
            for index in (0, 3):
                driver.engine.abort(requests[index])
        driver.run()
        return driver, requests

    plain, requests = play(abort=False)
    cut, _ = play(abort=True)
    assert set(plain.done) - set(cut.done) == {requests[0], requests[3]}
    for request in set(cut.done):
        assert cut.done[request].record.ids.tolist() == plain.done[request].record.ids.tolist()
        cut.check(request, 0)


def test_abort_of_a_waiting_and_of_an_unknown_request(qwen, drive, ids):
    driver = drive(qwen, max_running=1)
    driver.install(1)
    first, second = driver.turn("a", ids(1, 5)), driver.turn("b", ids(2, 5))
    driver.step()
    driver.engine.abort(second)
    driver.engine.abort(12345)
    driver.run()
    assert set(driver.done) == {first}


def test_a_new_request_supersedes_the_trajectorys_old_one(qwen, drive, ids):
    for rows in (4, 1):
        driver = drive(qwen, kv_slots=rows, max_running=1)
        driver.install(1)
        blocker = driver.turn("x", ids(9, 5), 3)
        old = driver.turn("a", ids(1, 5), 20, temperature=0)
        driver.tokens.pop("a")
        new = driver.turn("a", ids(1, 5), 20, temperature=0)
        driver.run()
        assert set(driver.done) == {blocker, new} and old != new
        driver.check(new, 0)


def test_rows_run_out_and_the_longest_idle_goes(qwen, drive, ids):
    driver = drive(qwen, kv_slots=3, max_running=2)
    driver.install(1)
    for name in "abc":
        driver.turn(name, ids(ord(name), 8), 3, temperature=0)
        driver.run()
    driver.turn("a", ids(7, 3), 3, temperature=0)
    driver.run()
    driver.turn("d", ids(8, 8), 3, temperature=0)  # b is the longest idle now
    driver.run()
    assert driver.engine.counters.num_evicted == 1
    assert driver.turn("b", ids(9, 3)) is None
    for name in "acd":
        request = driver.turn(name, ids(10, 3), 3, temperature=0)
        driver.run()
        assert driver.check(request, 0).num_prefill_tokens == 4


def test_more_requests_than_rows(qwen, drive, ids):
    driver = drive(qwen, kv_slots=3, max_running=3)
    driver.install(1)
    requests = [driver.turn(f"t{i}", ids(i, 4 + i), 5 + i, temperature=0) for i in range(12)]
    driver.run()
    for request in requests:
        driver.check(request, 0)


def test_a_long_prompt_is_cut_into_forwards_and_others_go_on(qwen, drive, ids):
    driver = drive(qwen, max_prefill_tokens=16)
    driver.install(1)
    short = driver.turn("short", ids(1, 4), 40, temperature=0)
    driver.step()
    long = driver.turn("long", ids(2, 100), 5, temperature=0)
    for _ in range(6):
        before = driver.engine.counters.num_decode_tokens
        driver.step()
        assert driver.engine.counters.num_decode_tokens == before + 1  # only "short" samples, at every step
    driver.run()
    assert driver.check(long, 0).num_prefill_tokens == 100
    driver.check(short, 0)


def test_finish_reasons(qwen, drive, ids):
    driver = drive(qwen, max_len=64)
    driver.install(1)
    requests = [driver.turn(f"t{i}", ids(i, 5), 50, 1.0) for i in range(40)]
    cut = driver.turn("cut", ids(77, 60), 50)
    too_long = driver.turn("too long", ids(78, 64), 50)
    driver.run()
    finished = [driver.done[r] for r in requests]
    assert {f.finish for f in finished} == {"stop", "length"}
    for done in finished:
        assert (done.finish == "stop") == (done.record.ids[-1] == 5)
        assert 5 not in done.record.ids[:-1]
    assert len(driver.done[cut].record) <= 4
    assert driver.done[too_long].finish == "length" and len(driver.done[too_long].record) == 0


def test_impossible_requests_end_empty(qwen, drive, ids):
    driver = drive(qwen)
    driver.install(1)
    asked = [
        driver.turn("empty", []),
        driver.turn("foreign", [3, 97]),
        driver.turn("negative", [-1]),
        driver.turn("none wanted", ids(1, 5), 0),
    ]
    good = driver.turn("good", ids(1, 5))
    driver.run()
    assert all(driver.done[r].finish == "length" and len(driver.done[r].record) == 0 for r in asked)
    driver.check(good)


def test_sampling_follows_the_distribution(qwen, drive, ids):
    driver = drive(qwen, max_running=64, kv_slots=64, max_prefill_tokens=2048)
    driver.install(1)
    prompt = ids(3, 6)
    counts = np.zeros(97)
    for wave in range(40):
        requests = [driver.turn(f"{wave}-{i}", prompt, 1, temperature=2.0) for i in range(64)]
        driver.run()
        for request in requests:
            counts[driver.done[request].record.ids[0]] += 1
        driver.engine.forget([f"{wave}-{i}" for i in range(64)])
    expected = np.exp(qwen.logprobs(1, prompt, 2.0)[-1])
    assert abs(counts / counts.sum() - expected).max() < 4 * np.sqrt(expected.max() / counts.sum())


def test_deterministic_results_do_not_depend_on_company_or_order(qwen, drive, ids):
    def play(order, extra):
        driver = drive(qwen, deterministic=True, seed=extra)
        driver.install(1)
        for i in range(extra):
            driver.turn(f"x{i}", ids(50 + i, 9), 12, seed=i)
        found = {}
        for turn in range(2):
            asked = {i: driver.turn(f"t{i}", ids(10 * turn + i, 6 + i), 12, seed=100 * turn + i) for i in order}
            driver.run()
            found |= {(turn, i): driver.check(r) for i, r in asked.items()}
        return {k: (f.record.ids.tobytes(), f.record.logprobs.tobytes()) for k, f in found.items()}

    alone = play([0, 1, 2, 3], 0)
    assert play([3, 1, 0, 2], 3) == alone
    assert {k: v for k, v in alone.items() if k[1] == 2} == play([2], 0)


def test_deterministic_does_not_reuse_a_prefix(qwen, drive, ids):
    driver = drive(qwen, deterministic=True)
    driver.install(1)
    driver.turn("a", ids(1, 10), 4)
    driver.run()
    size = len(driver.tokens["a"]) + 3
    request = driver.turn("a", ids(2, 3), 4)
    driver.run()
    assert driver.check(request).num_prefill_tokens == size


def test_nothing_is_generated_before_the_first_install_or_while_suspended(qwen, drive, ids):
    driver = drive(qwen)
    request = driver.turn("a", ids(1, 5), 20)
    assert not driver.engine.busy() and driver.engine.step() == []
    driver.install(1)
    driver.step()
    driver.engine.suspend()
    assert not driver.engine.busy() and driver.engine.step() == []
    driver.engine.resume()
    driver.run()
    driver.check(request)


@pytest.mark.parametrize("damage", ["missing", "unknown", "shape"])
def test_a_failed_install_stops_generation_until_a_good_one(qwen, drive, ids, damage):
    driver = drive(qwen)
    driver.install(0)
    request = driver.turn("a", ids(1, 5), 20)
    driver.step()
    named = dict(qwen.named(1))
    name, tensor = next(iter(named.items()))
    bad = {"missing": {}, "unknown": {**named, "x": tensor}, "shape": {**named, name: tensor[:1]}}[damage]
    driver.engine.suspend()
    with pytest.raises(SiteError):
        driver.engine.install(bad.items(), WeightsId(0, 1))
    driver.engine.resume()
    assert not driver.engine.busy() and driver.engine.step() == []
    driver.install(2)
    driver.run()
    assert set(driver.check(request).record.versions.tolist()) == {0, 2}


def test_forget_while_running_and_waiting(qwen, drive, ids):
    driver = drive(qwen, max_running=1)
    driver.install(1)
    driver.turn("a", ids(1, 5), 20)
    driver.turn("b", ids(2, 5), 20)
    kept = driver.turn("c", ids(3, 5), 20)
    driver.step()
    driver.engine.forget(["a", "b", "nobody"])
    driver.run()
    assert set(driver.done) == {kept}
    driver.check(kept)
