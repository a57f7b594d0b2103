"""Weights straight into vLLM's workers: one rank for each."""

from __future__ import annotations

import queue

import pytest

from rollart_hpc.config.schema import EngineConfig
from rollart_hpc.engines.contract import EngineSetup
from rollart_hpc.engines.vllm.updates import from_store
from rollart_hpc.errors import SiteError
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.direct import DirectSource, DirectTarget
from rollart_hpc.weights.store import NodeStore
from rollart_hpc.wire.messages import TransferFailed, TransferJoin, TransferReady, TransferSent

PATIENCE_S = 120.0
DEADLINE_S = 30.0
BUCKET_BYTES = 3000  # several for each layer, so that its tensors come in more than two


@pytest.fixture(scope="module", params=[1, 2], ids=["one worker", "two workers"])
def engine(request, wide, tmp_path_factory):
    from rollart_hpc.engines.vllm.engine import VllmEngine

    scratch = tmp_path_factory.mktemp("direct")
    config = EngineConfig(kind="vllm", max_running=4, kv_slots=4, max_prefill_tokens=64, device="cpu")
    setup = EngineSetup(wide.directory, config, 160, scratch / "cache", tensor_parallel=request.param, seed=1)
    made = VllmEngine(setup, NodeStore(scratch / "store", "inbox"))
    yield made
    made.close()


class Direct:
    """A trainer's side for one engine."""

    def __init__(self, engine) -> None:
        self.engine, self.reports = engine, queue.Queue()
        self.source = DirectSource(
            "127.0.0.1", bucket_bytes=BUCKET_BYTES, deadline_s=DEADLINE_S, report=self.reports.put
        )

    def install(self, version: int, named) -> int:
        size = 1 + self.engine.num_ranks
        self.source.offer(version, size, WeightsId(0, version), lambda: named)
        ready = self.reports.get(timeout=PATIENCE_S)
        assert isinstance(ready, TransferReady)
        join = TransferJoin(version, 0, version, 1, size, ready.host, ready.port, ready.secret)
        target = DirectTarget(join, DEADLINE_S)
        self.engine.suspend()
        try:
            self.engine.install(target, WeightsId(0, version))
        finally:
            self.engine.resume()
        return target.num_bytes


def test_every_worker_takes_what_the_trainer_sends(engine, wide, client, ids):
    one, direct = client(wide, engine), Direct(engine)
    for version in (1, 2):
        assert direct.install(version, wide.named(version)) > BUCKET_BYTES
        assert isinstance(direct.reports.get(timeout=PATIENCE_S), TransferSent)
        request = one.turn(f"direct {version}", ids(version, 20), 12)
        one.run()
        assert set(one.check(request).record.versions.tolist()) == {version}
    one.install(0)  # by shared memory
    request = one.turn("staged", ids(3, 20), 12)
    one.run()
    assert set(one.check(request).record.versions.tolist()) == {0}


def test_a_transfer_that_breaks_leaves_nothing_behind_and_the_next_one_is_right(engine, wide, client, ids):
    def broken():
        yield from wide.named(1)[:-4]
        raise RuntimeError("the trainer dies")

    one, direct = client(wide, engine), Direct(engine)
    one.install(0)
    under_way = one.turn("under way", ids(1, 20), 40)
    for _ in range(4):
        one.step()
    with pytest.raises(SiteError):
        direct.install(1, broken())
    assert isinstance(direct.reports.get(timeout=PATIENCE_S), TransferFailed)
    assert engine.weights_id is None and not engine.busy()  # weights of two versions generate nothing
    direct.install(2, wide.named(2))
    one.run()
    assert set(one.check(under_way).record.versions.tolist()) == {0, 2}


def test_one_worker_that_fails_does_not_upset_the_others(engine, wide, client, ids, tmp_path):
    store = NodeStore(tmp_path / "store", "node")
    store.write(WeightsId(0, 1), wide.named(1), 1 << 20)
    good = from_store(store.open(WeightsId(0, 1)).directory, WeightsId(0, 1))
    bad = from_store(tmp_path / "nowhere", WeightsId(0, 1))
    one = client(wide, engine)
    one.install(0)
    for _ in range(2):
        engine.suspend()
        with pytest.raises(SiteError, match="are not in"):
            engine._core.install(WeightsId(0, 1), [good] * (engine.num_ranks - 1) + [bad])
        engine.resume()
    one.install(2)
    request = one.turn("after", ids(3, 20), 12)
    one.run()
    assert set(one.check(request).record.versions.tolist()) == {2}
