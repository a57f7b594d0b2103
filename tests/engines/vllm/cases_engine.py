"""Engine `vllm` by the same contract as engine `torch`: one real engine for the whole file."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from rollart_hpc.config.schema import EngineConfig
from rollart_hpc.engines.contract import EngineSetup
from rollart_hpc.engines.vllm.settings import arguments
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.store import NodeStore

LONG = 24


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def engine(wide, scratch):
    from rollart_hpc.engines.vllm.engine import VllmEngine

    config = EngineConfig(kind="vllm", max_running=8, kv_slots=12, max_prefill_tokens=64, device="cpu")
    setup = EngineSetup(wide.directory, config, max_len=160, scratch=scratch / "cache", seed=1)
    made = VllmEngine(setup, NodeStore(scratch / "store", "inbox"))
    yield made
    made.close()
    assert not (scratch / "store").exists()


@pytest.fixture
def vllm(engine, wide, client):
    """A client of the engine, version 0 installed, nothing held."""
    engine.forget(list(engine._held))
    one = client(wide, engine)
    one._next = max(engine._live, default=0) + 1000
    one.install(0)
    return one


def test_nothing_is_generated_before_the_first_install(engine, wide, client, ids):
    if engine.weights_id is not None:
        pytest.skip("this test must be the first of its file")
    one = client(wide, engine)
    request = one.turn("early", ids(1, 9))
    assert request is not None and not engine.busy()
    one.install(1)
    one.run()
    assert set(one.check(request).record.versions.tolist()) == {1}


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probs_are_those_of_the_distribution_sampled_from(vllm, ids, temperature):
    requests = [vllm.turn(f"t{i}", ids(i, 5 + 7 * i), LONG, temperature) for i in range(6)]
    vllm.run()
    for request in requests:
        done = vllm.check(request, temperature)
        assert done.num_decode_tokens == len(done.record) > 0
        assert done.finish == ("stop" if done.record.ids[-1] == 5 else "length")
        assert min(done.queue_s, done.prefill_s, done.decode_s) >= 0


def test_every_install_changes_the_log_probs_of_a_tied_model(vllm, ids):
    """A tied head that was not packed again would be off by far more than the tolerance."""
    for version in (1, 2, 0, 2):
        vllm.install(version)
        request = vllm.turn(f"v{version}", ids(version, 20), 12, full=True)
        vllm.run()
        assert set(vllm.check(request).record.versions.tolist()) == {version}


def test_an_install_in_mid_request_gives_each_token_log_probs_under_its_own_version(vllm, wide, ids):
    requests = [vllm.turn(f"m{i}", ids(i, 30), 60) for i in range(4)]
    for version in (1, 2):
        for _ in range(4):
            vllm.step()
        vllm.install(version)
    vllm.run()
    seen = set()
    for request in requests:
        done = vllm.check(request)
        versions = done.record.versions
        assert (np.diff(versions) >= 0).all()
        seen |= set(versions.tolist())
        if len(set(versions.tolist())) > 1:
            assert done.num_prefill_tokens > 30  # what an install dropped was run again
    assert seen == {0, 1, 2}


def test_a_later_turn_sends_its_delta_and_prefills_little_more(vllm, ids):
    first = vllm.turn("a", ids(1, 64), 8)
    vllm.run()
    assert vllm.check(first).num_prefill_tokens == 64
    second = vllm.turn("a", ids(2, 5), 8)
    assert second is not None
    vllm.run()
    done = vllm.check(second)
    assert done.num_prefill_tokens <= 8 + 5 + 16  # whole blocks of 16 are found again


def test_a_turn_whose_prefix_is_not_held_is_asked_for_in_full(vllm, ids):
    vllm.turn("b", ids(1, 20), 4)
    vllm.run()
    before = vllm.engine.counters.num_prefix_missing
    vllm.engine.forget(["b"])
    assert vllm.turn("b", ids(2, 3)) is None
    assert vllm.engine.counters.num_prefix_missing == before + 1
    again = vllm.turn("b", ids(2, 3), full=True)
    vllm.run()
    vllm.check(again)


def test_an_aborted_request_yields_nothing_and_its_neighbours_go_on(vllm, ids):
    requests = [vllm.turn(f"n{i}", ids(i, 12), 40) for i in range(3)]
    for _ in range(3):
        vllm.step()
    if requests[1] not in vllm.done:
        vllm.engine.abort(requests[1])
        assert requests[1] not in vllm.engine._live
    vllm.engine.abort(99_999_999)  # unknown: ignored
    vllm.run()
    for request in (requests[0], requests[2]):
        vllm.check(request)


def test_a_new_request_of_a_trajectory_supersedes_the_one_it_had(vllm, ids):
    old = vllm.turn("s", ids(1, 10), 60)
    new = vllm.turn("s", ids(2, 10), 4, full=True)
    vllm.run()
    assert old not in vllm.done and new in vllm.done


def test_turns_without_room_end_empty(vllm, ids, caplog):
    too_long = vllm.turn("x", ids(1, 160), 4)
    unknown = vllm.turn("y", np.array([1, 2, 3000], np.int32), 4)
    vllm.run()
    assert len(vllm.done[too_long].record) == len(vllm.done[unknown].record) == 0
    assert "outside the vocabulary" in caplog.text
    almost = vllm.turn("z", ids(1, 157), 50)
    vllm.run()
    assert len(vllm.check(almost).record) <= 3


def test_the_oldest_trajectories_make_room(vllm, ids):
    for i in range(14):
        vllm.turn(f"h{i}", ids(i, 6), 2)
    vllm.run()
    assert vllm.engine.counters.num_evicted >= 2
    assert vllm.turn("h0", ids(1, 2)) is None


def test_kv_capacity_and_use_are_those_of_vllms_blocks(vllm, ids):
    engine = vllm.engine
    assert engine.kv_tokens >= 12 * 160 and engine.kv_tokens % 32 == 0
    requests = [vllm.turn(f"k{i}", ids(i, 40), LONG) for i in range(2)]
    most = 0
    while engine.busy():
        vllm.step()
        most = max(most, engine.kv_used_tokens)
    assert all(request in vllm.done for request in requests)
    assert 2 * 40 <= most < engine.kv_tokens
    assert engine.kv_used_tokens == 0  # what is kept for later turns may be overwritten


def test_weights_of_the_node_are_mapped_and_others_go_through_shared_memory(vllm, wide, ids, scratch):
    store = NodeStore(scratch / "node store", "node")
    store.write(WeightsId(3, 2), wide.named(2), bucket_bytes=4096)
    vllm.engine.suspend()
    vllm.engine.install(store.open(WeightsId(3, 2)), WeightsId(3, 2))
    vllm.engine.resume()
    request = vllm.turn("w", ids(5, 12), 6)
    vllm.run()
    assert (vllm.check(request).record.versions == 2).all()
    assert store.versions() == [WeightsId(3, 2)]
    assert NodeStore(scratch / "store", "inbox").versions() == []


def test_weights_that_lack_a_tensor_are_not_taken_for_whole(vllm, wide):
    """It comes last: the engine is of no use afterwards, and its process would end."""
    vllm.engine.suspend()
    with pytest.raises(Exception, match="are missing from the weights"):
        vllm.engine.install(wide.named(1)[:-2], WeightsId(1, 1))
    vllm.engine.resume()
    assert vllm.engine.weights_id is None and not vllm.engine.busy()


def test_the_users_arguments_win_over_defaults_only(wide, scratch):
    config = EngineConfig(kind="vllm", device="cpu", options={"block_size": 32, "seed": 9})
    chosen = arguments(EngineSetup(wide.directory, config, max_len=100, scratch=scratch, seed=4))
    assert (chosen["block_size"], chosen["seed"], chosen["max_model_len"]) == (32, 4, 100)
    assert chosen["kv_cache_memory_bytes"] >= 64 << 20
    assert logging.getLogger("vllm").level == logging.WARNING
