"""Split turns on one real engine: what it prefilled for another is what that one decodes from."""

from __future__ import annotations

import os

import msgspec
import numpy as np
import pytest

from rollart_hpc.config.schema import EngineConfig
from rollart_hpc.engines.contract import EngineSetup, Request
from rollart_hpc.engines.vllm.handles import Handle, usable_params
from rollart_hpc.engines.vllm.settings import arguments, prefill_params, set_environment
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.store import NodeStore

PROMPT = 75  # two blocks of 32 and a rest


@pytest.fixture(scope="module")
def kv_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("kv") / "files"


@pytest.fixture(scope="module")
def engine(wide, kv_directory):
    from rollart_hpc.engines.vllm.engine import VllmEngine

    config = EngineConfig(kind="vllm", max_running=8, kv_slots=8, max_prefill_tokens=40, device="cpu")
    setup = EngineSetup(
        wide.directory, config, max_len=160, scratch=kv_directory.parent / "cache", seed=1, kv_directory=kv_directory
    )
    made = VllmEngine(setup, NodeStore(kv_directory.parent / "store", "inbox"))
    yield made
    made.close()


class Pair:
    """One engine in both parts: installing drops what it holds itself, so KV can only come from the files."""

    def __init__(self, engine, family) -> None:
        self.engine, self.family, self.number = engine, family, 0
        engine.forget(list(engine._held))
        self.install(0)

    def install(self, version: int) -> None:
        self.engine.suspend()
        self.engine.install(self.family.named(version), WeightsId(1, version))
        self.engine.resume()

    def ask(self, ids, max_new: int = 12, **options):
        self.number += 1
        request = Request(self.number, f"t{self.number}", 0, 0, True, ids, max_new, 0.0, **options)
        assert self.engine.add(request)
        return request

    def run(self) -> list:
        ended = []
        while self.engine.busy():
            ended += self.engine.step()
        return ended

    def prefill(self, ids) -> str:
        self.ask(ids, prefill_only=True)
        (done,) = self.run()
        assert done.kv and len(done.record) == 0 and done.num_prefill_tokens == len(ids)
        return done.kv


@pytest.fixture
def pair(engine, wide):
    return Pair(engine, wide)


def test_a_split_turn_gives_what_a_whole_one_gives(pair, wide, ids):
    prompt = ids(1, PROMPT)
    pair.ask(prompt)
    (whole,) = pair.run()
    pair.install(0)  # nothing is left in the prefix cache
    kv = pair.prefill(prompt)
    pair.install(0)
    pair.ask(prompt, kv=kv)
    (split,) = pair.run()
    assert split.num_prefill_tokens == PROMPT - 64  # whole blocks were taken over
    np.testing.assert_array_equal(split.record.ids, whole.record.ids)
    wide.check(prompt, split, 0.0)


def test_kv_of_other_weights_is_not_taken(pair, wide, ids):
    prompt = ids(2, PROMPT)
    kv = pair.prefill(prompt)
    assert msgspec.json.decode(kv, type=Handle).weights_id == WeightsId(1, 0)
    pair.install(1)
    before = pair.engine.counters.num_kv_refused
    pair.ask(prompt, kv=kv)
    (done,) = pair.run()
    assert pair.engine.counters.num_kv_refused == before + 1 and done.num_prefill_tokens == PROMPT
    wide.check(prompt, done, 0.0)


def test_an_install_between_both_halves_computes_the_prompt_again(pair, wide, ids):
    """The request was accepted with KV of version 0 and starts under version 2."""
    prompt = ids(3, PROMPT)
    kv = pair.prefill(prompt)
    pair.ask(prompt, kv=kv)
    pair.install(2)
    (done,) = pair.run()
    assert set(done.record.versions.tolist()) == {2}
    wide.check(prompt, done, 0.0)


def test_an_install_while_it_decodes_keeps_the_tokens(pair, wide, ids):
    prompt = ids(4, PROMPT)
    kv = pair.prefill(prompt)
    pair.install(0)
    request = pair.ask(prompt, max_new=40, kv=kv)
    ended = [done for _ in range(4) for done in pair.engine.step()]
    if not ended:
        pair.install(1)
        assert request.request in pair.engine._live
        ended = pair.run()
    wide.check(prompt, ended[0], 0.0)


def test_a_file_that_is_gone_is_computed_again(pair, wide, ids, kv_directory):
    prompt = ids(5, PROMPT)
    kv = pair.prefill(prompt)
    pair.install(0)
    for path in kv_directory.iterdir():
        path.unlink()
    pair.ask(prompt, kv=kv)
    (done,) = pair.run()
    assert done.num_prefill_tokens == PROMPT
    wide.check(prompt, done, 0.0)


def test_files_that_nobody_came_for_do_not_pile_up(pair, ids, kv_directory):
    for i in range(12):
        pair.prefill(ids(100 + i, 40))
    assert len(list(kv_directory.iterdir())) <= 8


def test_a_short_prompt_has_nothing_to_hand_on(pair, wide, ids):
    prompt = ids(6, 9)
    kv = pair.prefill(prompt)
    pair.ask(prompt, kv=kv)
    (done,) = pair.run()
    wide.check(prompt, done, 0.0)


def test_a_handle_is_read_with_care():
    kv = Handle(1, 2, {"load": "ab"}).encode()
    assert usable_params(kv, WeightsId(1, 2)) == {"load": "ab"}
    assert usable_params(kv, WeightsId(2, 2)) is None and usable_params(kv, None) is None
    assert usable_params("{}", WeightsId(1, 2)) is None and usable_params("no json", WeightsId(1, 2)) is None


def test_gpus_use_nixl(wide, tmp_path, monkeypatch):
    config = EngineConfig(kind="vllm", device="cuda")
    setup = EngineSetup(wide.directory, config, max_len=100, scratch=tmp_path, kv_directory=tmp_path, tensor_parallel=4)
    chosen = arguments(setup)
    assert chosen["kv_transfer_config"]["kv_connector"] == "NixlConnector"
    for name in ("VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"):
        monkeypatch.delenv(name, raising=False)
    set_environment(setup)
    assert os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] == setup.host
    assert int(os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"]) > 1024  # engines of a node need one each
    assert prefill_params(setup, "k")["do_remote_decode"] is True
    assert chosen["tensor_parallel_size"] == 4 and "enforce_eager" not in chosen
