"""The engine's loop against messages: a link made of two queues, real weights in a real node store."""

from __future__ import annotations

import queue
import threading
import time

import numpy as np
import pytest
import torch

from rollart_hpc.engines.install import Preparer
from rollart_hpc.engines.service import Service
from rollart_hpc.observe.trace import Tracer
from rollart_hpc.types import TokenRecord, WeightsId
from rollart_hpc.weights.direct import DirectSource
from rollart_hpc.weights.store import NodeStore
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.prefix import prefix_hash
from rollart_hpc.wire.wakeup import Wakeup

PATIENCE_S = 120.0


class FakeLink:
    clock_offset_s = 0.0

    def __init__(self) -> None:
        self.incoming: queue.SimpleQueue = queue.SimpleQueue()
        self.sent: queue.Queue = queue.Queue()
        self._readable = Wakeup()

    def deliver(self, message, *frames) -> None:
        self.incoming.put((message, list(frames)))
        self._readable.set()

    def recv(self, timeout_s):
        assert timeout_s == 0, "the loop waits in one place only"
        self._readable.clear()
        try:
            return self.incoming.get_nowait()
        except queue.Empty:
            return None

    def fileno(self) -> int:
        return self._readable.fd

    def rest(self) -> None: ...

    def turn(self) -> None: ...

    def count_work(self, total) -> None:
        self.work = total

    def send(self, message, *frames) -> None:
        self.sent.put((message, [bytes(f) for f in frames]))


class Station:
    """A service in a thread, and the controller's side of it."""

    def __init__(self, engine, store: NodeStore, deadline_s: float = 30.0, trace=None) -> None:
        self.engine, self.store, self.link, wakeup = engine, store, FakeLink(), Wakeup()
        self.tracer = Tracer(trace, "engine-0")
        preparer = Preparer(store, deadline_s, engine.device, wakeup.set)
        self.service = Service(engine, self.link, preparer, wakeup, self.tracer)
        self.thread = threading.Thread(target=self.service.run, daemon=True)
        self.thread.start()

    def receive(self, kind, timeout_s: float = PATIENCE_S):
        message, frames = self.link.sent.get(timeout=timeout_s)
        assert isinstance(message, kind), message
        return (message, TokenRecord.from_frames(frames)) if frames else message

    def generate(self, request: int, ids, prefix=None, max_new: int = 6, trajectory: str = "a") -> None:
        size, mark = (0, 0) if prefix is None else (len(prefix), prefix_hash(prefix))
        message = ms.Generate(request, trajectory, size, mark, prefix is None, max_new, 1.0, 0)
        self.link.deliver(message, ids.tobytes())

    def stop(self) -> None:
        self.link.deliver(ms.Stop("done"))
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        self.tracer.close()


@pytest.fixture
def station(qwen, drive, tmp_path):
    store = NodeStore(tmp_path / "store", "node")
    for version in range(3):
        store.write(WeightsId(1, version), qwen.named(version), bucket_bytes=4096)
    station = Station(drive(qwen).engine, store, trace=tmp_path / "trace.jsonl")
    yield station
    station.stop()


def install(station, version: int) -> ms.Installed:
    station.link.deliver(ms.Install(1, version))
    return station.receive(ms.Installed)


def test_two_turns_and_a_missing_prefix(station, qwen, ids, tmp_path):
    installed = install(station, 1)
    assert (installed.attempt, installed.version) == (1, 1)
    assert installed.num_bytes > 0 and 0 < installed.exposed_s <= installed.seconds
    prompt = ids(1, 12)
    station.generate(1, prompt)
    message, record = station.receive(ms.Generated)
    assert message.num_prefill_tokens == 12 and message.num_decode_tokens == len(record)
    assert 0 < message.kv_used_tokens == station.engine.kv_used_tokens < station.engine.kv_tokens
    before = np.concatenate([prompt, record.ids])
    station.generate(2, ids(2, 3), prefix=before)
    message, record = station.receive(ms.Generated)
    assert message.request == 2 and message.num_prefill_tokens == 4
    whole = np.concatenate([before, ids(2, 3), record.ids])
    expected = qwen.logprobs(1, whole)[-len(record) - 1 : -1]
    np.testing.assert_allclose(record.logprobs, expected[np.arange(len(record)), record.ids], atol=1e-4)
    station.link.deliver(ms.Forget(["a"]))
    station.generate(3, ids(2, 3), prefix=whole)
    assert station.receive(ms.PrefixMissing).request == 3
    time.sleep(0.1)  # it waits, and longer than what is left out of a trace
    station.stop()
    names = (tmp_path / "trace.jsonl").read_text()
    assert all(f'"{name}"' in names for name in ("prefill", "decode", "weights", "wait"))


def test_weights_that_are_damaged_or_absent_leave_the_old_ones_in_place(station, ids):
    install(station, 0)
    bucket = next((station.store.directory / "v1-1").glob("bucket_0*"))
    content = bytearray(bucket.read_bytes())
    content[100] ^= 1
    bucket.write_bytes(content)
    for version in (1, 7):
        station.link.deliver(ms.Install(1, version))
        failed = station.receive(ms.InstallFailed)
        assert failed.version == version and failed.reason
    station.generate(1, ids(1, 5))
    _, record = station.receive(ms.Generated)
    assert (record.versions == 0).all()


def test_abort_yields_nothing(station, ids):
    station.generate(1, ids(1, 5))
    station.generate(2, ids(1, 5), trajectory="b")
    station.link.deliver(ms.Abort(1))
    install(station, 0)
    message, _ = station.receive(ms.Generated)
    assert message.request == 2


def test_after_who_are_you_nothing_of_before_is_answered(station, ids):
    station.generate(1, ids(1, 5))
    station.link.deliver(ms.WhoAreYou())
    install(station, 0)
    station.generate(2, ids(2, 5), trajectory="b")
    message, _ = station.receive(ms.Generated)
    assert message.request == 2 and station.link.sent.empty()


def test_direct_install_and_a_collective_that_breaks(station, qwen, ids):
    install(station, 0)
    reports: queue.Queue = queue.Queue()
    source = DirectSource("127.0.0.1", bucket_bytes=4096, deadline_s=30.0, report=reports.put)

    def join(epoch: int, named) -> None:
        source.offer(epoch, 2, WeightsId(1, epoch), lambda: named)
        ready = reports.get(timeout=PATIENCE_S)
        station.link.deliver(ms.TransferJoin(epoch, 1, epoch, 1, 2, ready.host, ready.port, ready.secret))

    def broken():
        yield from qwen.named(1)[:3]
        raise RuntimeError("the source dies")

    join(1, broken())
    assert station.receive(ms.TransferFailed).epoch == 1
    assert isinstance(reports.get(timeout=PATIENCE_S), ms.TransferFailed)
    station.generate(1, ids(1, 5))  # waits: the weights are of two versions
    join(2, qwen.named(2))
    installed = station.receive(ms.Installed)
    assert installed.version == 2 and installed.num_bytes > 0
    _, record = station.receive(ms.Generated)
    assert (record.versions == 2).all()


def test_a_collective_in_progress_outlives_the_engine_by_its_deadline_at_most(tmp_path):
    reports: queue.Queue = queue.Queue()
    woken = threading.Event()
    source = DirectSource("127.0.0.1", bucket_bytes=4096, deadline_s=2.0, report=reports.put)
    source.offer(1, 3, WeightsId(1, 1), list)  # the third rank never comes
    ready = reports.get(timeout=PATIENCE_S)
    preparer = Preparer(NodeStore(tmp_path / "store", "node"), 2.0, torch.device("cpu"), woken.set)
    assert not preparer.is_busy()
    preparer.order(ms.TransferJoin(1, 1, 1, 1, 3, ready.host, ready.port, ready.secret))
    preparer.order(ms.Install(1, 7))
    assert preparer.is_busy()
    thread = next(thread for thread in threading.enumerate() if thread.name == "weights")
    assert not thread.daemon
    preparer.close()
    thread.join(PATIENCE_S)
    assert not preparer.is_busy() and woken.is_set()
    assert preparer.ready.get_nowait().error and preparer.ready.empty()  # what was not begun is forgotten
    source.join(PATIENCE_S)


def test_an_idle_engine_does_not_poll(station, monkeypatch):
    install(station, 0)
    waits = []
    original = station.service._wait
    monkeypatch.setattr(station.service, "_wait", lambda: (waits.append(1), original()))
    install(station, 1)  # from here on the loop uses the counting one
    with pytest.raises(queue.Empty):
        station.link.sent.get(timeout=0.5)
    assert len(waits) <= 3
