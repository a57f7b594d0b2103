"""Serves the controller's messages with an engine. Owns the loop of an engine process; knows no backend.

    waits for               unblocked by
    requests, weights       a message on the link, or the preparer's wake-up

While the engine is busy, the loop reads messages between steps and never blocks. Otherwise it blocks until one arrives.
"""

from __future__ import annotations

import logging
import queue
import select
import time

import numpy as np

from rollart_hpc.engines.contract import Engine, Finished, Request
from rollart_hpc.engines.install import Prepared, Preparer
from rollart_hpc.engines.lane import Lane
from rollart_hpc.errors import RollartError
from rollart_hpc.observe.trace import Tracer
from rollart_hpc.types import Frame
from rollart_hpc.wire.link import Link
from rollart_hpc.wire.messages import (
    Abort,
    AnyMessage,
    Forget,
    Generate,
    Generated,
    Install,
    Installed,
    Prefilled,
    PrefixMissing,
    Stop,
    TransferJoin,
    WhoAreYou,
)
from rollart_hpc.wire.wakeup import Wakeup

log = logging.getLogger(__name__)


class Service:
    def __init__(self, engine: Engine, link: Link, preparer: Preparer, wakeup: Wakeup, tracer: Tracer) -> None:
        self._engine = engine
        self._link = link
        self._preparer = preparer
        self._wakeup = wakeup
        self._tracer = tracer
        self._lane = Lane(tracer)
        self._in_flight: set[int] = set()
        self._stopped = False
        self._poll = select.poll()
        for fd in (link.fileno(), wakeup.fd):
            self._poll.register(fd, select.POLLIN)
        link.count_work(lambda: engine.counters.num_prefill_tokens + engine.counters.num_decode_tokens)

    def run(self) -> None:
        """Runs until the controller sends Stop, or LinkClosed is raised."""
        while not self._stopped:
            while not self._stopped and (received := self._link.recv(0)) is not None:
                self._handle(*received)
            self._install_what_is_ready()
            if self._engine.busy():
                self._step()
            elif not self._stopped:
                self._wait()
        self._lane.flush()

    def _step(self) -> None:
        counters, start_s = self._engine.counters, time.monotonic()
        prefilled, decoded = counters.num_prefill_tokens, counters.num_decode_tokens
        ended = self._engine.step()
        self._lane.step(start_s, counters.num_prefill_tokens - prefilled, counters.num_decode_tokens - decoded)
        for done in ended:
            self._send(done)

    def _wait(self) -> None:
        start_s = time.monotonic()
        self._link.rest()
        self._poll.poll()
        self._link.turn()
        self._lane.span("wait", start_s)
        self._tracer.set_offset(self._link.clock_offset_s)

    def _handle(self, message: AnyMessage, frames: list[Frame]) -> None:
        match message:
            case Generate():
                self._generate(message, frames)
            case Abort():
                self._in_flight.discard(message.request)
                self._engine.abort(message.request)
            case Forget():
                self._engine.forget(message.trajectories)
            case Install() | TransferJoin():
                self._preparer.order(message)
            case WhoAreYou():
                self._drop_all()
            case Stop():
                log.info("stopping: %s", message.reason)
                self._stopped = True
            case _:
                log.warning("ignoring unexpected message %s", type(message).__name__)

    def _generate(self, message: Generate, frames: list[Frame]) -> None:
        if message.forget:
            self._engine.forget(message.forget)
        request = Request(
            request=message.request,
            trajectory=message.trajectory,
            prefix_tokens=message.prefix_tokens,
            prefix_hash=message.prefix_hash,
            full=message.full,
            new_ids=np.frombuffer(frames[0], np.int32),
            max_new_tokens=message.max_new_tokens,
            temperature=message.temperature,
            seed=message.seed,
            prefill_only=message.prefill_only,
            kv=message.kv,
        )
        if self._engine.add(request):
            self._in_flight.add(request.request)
        else:
            self._link.send(PrefixMissing(request.request))

    def _send(self, done: Finished) -> None:
        self._in_flight.discard(done.request)
        if done.kv:
            times = done.queue_s, done.prefill_s
            used = self._engine.kv_used_tokens
            self._link.send(Prefilled(done.request, done.trajectory, done.kv, done.num_prefill_tokens, *times, used))
            return
        message = Generated(
            request=done.request,
            trajectory=done.trajectory,
            num_prefill_tokens=done.num_prefill_tokens,
            num_decode_tokens=done.num_decode_tokens,
            queue_s=done.queue_s,
            prefill_s=done.prefill_s,
            decode_s=done.decode_s,
            kv_used_tokens=self._engine.kv_used_tokens,
        )
        self._link.send(message, *done.record.to_frames())

    def _drop_all(self) -> None:
        """The controller considered us lost and issues all requests again. Tokens and KV stay: they may be reused."""
        for request in self._in_flight:
            self._engine.abort(request)
        self._in_flight.clear()

    # --- weights -------------------------------------------------------------------------------

    def _install_what_is_ready(self) -> None:
        self._wakeup.clear()
        while True:
            try:
                prepared = self._preparer.ready.get_nowait()
            except queue.Empty:
                return
            self._install(prepared)

    def _install(self, prepared: Prepared) -> None:
        if prepared.named is None:
            self._refuse(prepared, prepared.error)
            return
        start_s = time.monotonic()
        self._engine.suspend()
        try:
            self._engine.install(prepared.named, prepared.weights_id)
        except RollartError as error:
            self._refuse(prepared, str(error))
            return
        finally:
            self._engine.resume()
        end_s = time.monotonic()
        self._lane.span("weights", start_s, version=prepared.order.version)
        message = Installed(
            attempt=prepared.order.attempt,
            version=prepared.order.version,
            num_bytes=prepared.num_bytes(),
            seconds=end_s - prepared.asked_s,
            exposed_s=end_s - start_s,
        )
        self._link.send(message)

    def _refuse(self, prepared: Prepared, reason: str) -> None:
        log.warning("weights %s not installed, reporting it to the controller: %s", prepared.weights_id, reason)
        self._link.send(prepared.failed(reason))
