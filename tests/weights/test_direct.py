"""Trainer to engines without a relay. Source and targets are threads here; processes are in test_transfer."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator

import pytest
import torch

from rollart_hpc.types import WeightsId
from rollart_hpc.weights.digest import digest
from rollart_hpc.weights.direct import DirectSource, DirectTarget, Named
from rollart_hpc.weights.process_groups import TransferError
from rollart_hpc.wire.messages import Message, TransferFailed, TransferJoin, TransferReady, TransferSent
from tests.processes import server

ID = WeightsId(2, 5)
DEADLINE_S = 30.0
SHORT_S = 4.0  # a deadline that a test waits for
PATIENCE_S = 120.0


def tensors() -> list[tuple[str, torch.Tensor]]:
    torch.manual_seed(1)
    return [(f"layer.{i}", torch.randn(50 + 37 * i).to(torch.bfloat16 if i % 2 else torch.float32)) for i in range(20)]


class Target(threading.Thread):
    def __init__(
        self, ready: TransferReady, rank: int, size: int, weights_id: WeightsId = ID, deadline_s: float = DEADLINE_S
    ) -> None:
        super().__init__(daemon=True)
        self.deadline_s = deadline_s
        self.join_message = TransferJoin(ready.epoch, *weights_id, rank, size, ready.host, ready.port, ready.secret)
        self.received: dict[str, torch.Tensor] = {}
        self.digest = ""
        self.error: TransferError | None = None
        self.start()

    def run(self) -> None:
        try:
            target = DirectTarget(self.join_message, self.deadline_s)
            for name, tensor in target:
                self.received[name] = tensor.clone()
            self.digest = target.digest
        except TransferError as error:
            self.error = error


@pytest.fixture
def reports() -> queue.Queue[Message]:
    return queue.Queue()


@pytest.fixture
def source(reports: queue.Queue[Message]) -> DirectSource:
    return DirectSource("127.0.0.1", bucket_bytes=1024, deadline_s=DEADLINE_S, report=reports.put)


def offer(
    source: DirectSource, reports: queue.Queue[Message], size: int, epoch: int = 1, named: Named = ()
) -> TransferReady:
    source.offer(epoch, size, ID, lambda: named or tensors())
    ready = reports.get(timeout=PATIENCE_S)
    assert isinstance(ready, TransferReady) and ready.epoch == epoch
    return ready


def test_engines_get_the_trainer_s_weights(source: DirectSource, reports: queue.Queue[Message]) -> None:
    ready = offer(source, reports, 3)
    targets = [Target(ready, 1, 3), Target(ready, 2, 3)]
    sent = reports.get(timeout=PATIENCE_S)
    assert isinstance(sent, TransferSent) and sent.num_bytes > 0
    for target in targets:
        target.join(PATIENCE_S)
        assert target.error is None
        assert target.digest == digest(tensors())
        assert digest(target.received.items()) == digest(tensors())
    source.join(PATIENCE_S)
    assert not source.busy()


def test_an_epoch_that_can_t_be_opened_is_reported(reports: queue.Queue[Message]) -> None:
    source = DirectSource("192.0.2.1", bucket_bytes=1024, deadline_s=DEADLINE_S, report=reports.put)
    source.offer(7, 2, ID, tensors)
    failed = reports.get_nowait()
    assert isinstance(failed, TransferFailed) and failed.epoch == 7 and "can't listen" in failed.reason
    assert not source.busy()


def test_a_snapshot_that_breaks_fails_the_epoch_on_both_sides(
    source: DirectSource, reports: queue.Queue[Message]
) -> None:
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield from tensors()
        raise RuntimeError("the trainer broke")

    ready = offer(source, reports, 2, named=broken())
    target = Target(ready, 1, 2)
    failed = reports.get(timeout=PATIENCE_S)
    assert isinstance(failed, TransferFailed) and "the trainer broke" in failed.reason
    target.join(PATIENCE_S)
    assert target.error is not None and target.digest == ""


def test_an_engine_that_never_comes_fails_the_epoch_and_the_next_one_works(
    reports: queue.Queue[Message],
) -> None:
    source = DirectSource("127.0.0.1", bucket_bytes=1024, deadline_s=SHORT_S, report=reports.put)
    ready = offer(source, reports, 3)
    alone = Target(ready, 1, 3, deadline_s=SHORT_S)
    assert isinstance(reports.get(timeout=PATIENCE_S), TransferFailed)
    alone.join(PATIENCE_S)
    assert alone.error is not None
    ready = offer(source, reports, 2, epoch=2)
    target = Target(ready, 1, 2)
    assert isinstance(reports.get(timeout=PATIENCE_S), TransferSent)
    target.join(PATIENCE_S)
    assert target.digest == digest(tensors())


def test_an_engine_that_expects_another_version_refuses(source: DirectSource, reports: queue.Queue[Message]) -> None:
    ready = offer(source, reports, 2)
    target = Target(ready, 1, 2, WeightsId(2, 6))
    target.join(PATIENCE_S)
    assert target.error is not None and "expected WeightsId(attempt=2, version=6)" in str(target.error)
    assert isinstance(reports.get(timeout=PATIENCE_S), TransferFailed)


def _die_in_mid_transfer(join: TransferJoin) -> None:
    for number, _ in enumerate(DirectTarget(join, DEADLINE_S)):
        if number == 5:
            os.kill(os.getpid(), signal.SIGKILL)


def test_an_engine_killed_in_mid_transfer_fails_the_epoch_and_the_next_one_is_right(
    source: DirectSource, reports: queue.Queue[Message]
) -> None:
    """Nothing is silently wrong: the survivor knows that it has no complete set, and what it gets next is right."""
    ready = offer(source, reports, 3)
    survivor = Target(ready, 1, 3)
    victim = server.Process(
        target=_die_in_mid_transfer,
        args=(TransferJoin(1, *ID, 2, 3, ready.host, ready.port, ready.secret),),
        daemon=True,
    )
    victim.start()
    assert isinstance(reports.get(timeout=PATIENCE_S), TransferFailed)
    survivor.join(PATIENCE_S)
    assert survivor.error is not None and survivor.digest == ""
    victim.join(PATIENCE_S)
    ready = offer(source, reports, 2, epoch=2)
    again = Target(ready, 1, 2)
    assert isinstance(reports.get(timeout=PATIENCE_S), TransferSent)
    again.join(PATIENCE_S)
    assert digest(again.received.items()) == again.digest == digest(tensors())
    source.join(PATIENCE_S)
