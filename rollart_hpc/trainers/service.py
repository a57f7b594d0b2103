"""The message loop of a trainer process. Owns the conversation with the controller; knows no backend.

    waits for                  unblocked by
    rank 0: the controller     Chunk, Save, PublishAgain, TransferOffer, Stop
    ranks 1..: rank 0          the same Chunk, Save or Stop, passed on as raw bytes

The new weights of a step are gathered once: while they are copied for others, their digest is computed.

One step on rank 0:  BatchWanted -> Chunk* -> accumulate -> step -> Committed -> Published -> BatchWanted.
Rank 0 merges the chunks that arrived while it was busy, and trains them after it has handled all other messages. All
ranks handle the same messages in the same order. `Leader` is what only rank 0 does.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from rollart_hpc.errors import SiteError
from rollart_hpc.observe.trace import Tracer
from rollart_hpc.rundir import TRAINER_PART
from rollart_hpc.trainers.chunks import Inbox, groups_of
from rollart_hpc.trainers.contract import Keep, StepResult, Trainer
from rollart_hpc.trainers.publish import Named, Publisher
from rollart_hpc.trainers.recording import Recorder
from rollart_hpc.trainers.speed import gpu_name, speed
from rollart_hpc.trainers.world import World
from rollart_hpc.types import Frame, WeightsId
from rollart_hpc.wire import messages
from rollart_hpc.wire.link import Link, LinkClosed
from rollart_hpc.wire.messages import (
    AnyMessage,
    BatchWanted,
    Chunk,
    Committed,
    Message,
    PublishAgain,
    Published,
    Save,
    Saved,
    Stop,
    TransferOffer,
    WhoAreYou,
)

log = logging.getLogger(__name__)

PART = TRAINER_PART


class Steps:
    """Trains chunks, on every rank."""

    def __init__(self, trainer: Trainer, recorder: Recorder | None = None) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._is_under_way = False

    def take(self, chunk: Chunk, frames: list[Frame], keep: Keep | None = None) -> StepResult | None:
        """Accumulate a chunk. The first chunk starts the step, or restarts it; the last chunk ends it."""
        if chunk.index == 0 and self._is_under_way:
            log.info("step %d restarts from its first chunk", chunk.step)
            self._trainer.discard()
        groups = groups_of(chunk, frames)
        if self._recorder is not None:
            self._recorder.take(groups, starts=chunk.index == 0)
        self._trainer.accumulate(groups, last=chunk.last)
        self._is_under_way = not chunk.last
        return self._trainer.step(keep) if chunk.last else None


class Follower:
    """Ranks 1 and up: handle the messages that rank 0 broadcasts."""

    def __init__(self, trainer: Trainer, world: World) -> None:
        self._trainer = trainer
        self._world = world
        self._steps = Steps(trainer)

    def run(self) -> None:
        self._export()
        while True:
            header, *frames = self._world.broadcast()
            match messages.decode(header):
                case Chunk() as chunk:
                    self._steps.take(chunk, frames)
                case PublishAgain():
                    self._export()
                case Save() as save:
                    self._save(save)
                case Stop() as stop:
                    log.info("stopping: %s", stop.reason)
                    return

    def _export(self) -> None:
        """Gathering the weights is a collective; only rank 0 keeps the result."""
        for _ in self._trainer.export():
            pass

    def _save(self, save: Save) -> None:
        try:
            self._trainer.save(Path(save.directory) / PART)
        except SiteError as error:
            log.error("%s", error)  # rank 0 reports it to the controller


class Leader:
    """Rank 0: talks to the controller."""

    def __init__(
        self,
        trainer: Trainer,
        world: World,
        link: Link,
        publisher: Publisher,
        tracer: Tracer,
        *,
        attempt: int,
        recorder: Recorder | None = None,
    ) -> None:
        self._trainer = trainer
        self._world = world
        self._link = link
        self._publisher = publisher
        self._tracer = tracer
        self._attempt = attempt
        self._recorder = recorder
        self._steps = Steps(trainer, recorder)
        self._inbox = Inbox()
        self._agreed = trainer.version  # newest version that the controller has confirmed
        self._wait_s = self._train_s = 0.0
        self._stopped = False

    def run(self) -> None:
        """Run until the controller sends Stop. Raises LinkClosed when the controller is lost."""
        self._publish()
        self._want_batch()
        while not self._stopped:
            self._handle(*self._receive())
            self._handle_what_came()
            self._train()

    def _handle_what_came(self) -> None:
        """Handle messages that have already arrived, up to the end of a batch. Later ones belong to the next step."""
        while not self._stopped and not self._inbox.is_complete:
            received = self._link.recv(0.0)
            if received is None:
                return
            self._handle(*received)

    def _handle(self, message: AnyMessage, frames: list[Frame]) -> None:
        match message:
            case Chunk():
                self._put(message, frames)
            case Save():
                self._save(message)
            case PublishAgain():
                self._publish_again(message)
            case TransferOffer():
                self._publisher.offer(message)
            case WhoAreYou():
                self._go_on_or_end()
            case Stop():
                log.info("stopping: %s", message.reason)
                self._pass_on(message, [])
                self._stopped = True
            case _:
                log.warning("unexpected %s", type(message).__name__)

    def _receive(self) -> tuple[AnyMessage, list[Frame]]:
        start_s = time.monotonic()
        received = self._link.recv()
        assert received is not None, "recv without a timeout returns a message"
        end_s = time.monotonic()
        self._wait_s += end_s - start_s
        self._tracer.set_offset(self._link.clock_offset_s)
        self._tracer.span("wait", start_s, end_s, step=self._trainer.version, got=type(received[0]).__name__)
        return received

    # --- steps -------------------------------------------------------------------------------

    def _put(self, chunk: Chunk, frames: list[Frame]) -> None:
        if chunk.step == self._trainer.version and self._inbox.put(chunk, frames):
            self._agreed = chunk.step
        else:
            log.info("ignoring chunk %d of step %d at version %d", chunk.index, chunk.step, self._trainer.version)

    def _train(self) -> None:
        """Train the chunks in the inbox. The trainer may keep some samples for later."""
        part = None if self._stopped else self._inbox.take()
        if part is None:
            return
        chunk, frames = part
        start_s = time.monotonic()
        self._pass_on(chunk, frames)
        published: list[Published] = []

        def keep(named: Named) -> str:
            self._end_of_training(chunk, start_s)
            sent, digest = self._copy(named)
            published.append(sent)
            return digest

        result = self._steps.take(chunk, frames, keep)
        if result is None:
            self._end_of_training(chunk, start_s)
            return
        self._commit(chunk.step, result)
        for sent in published:
            self._link.send(sent)
        self._want_batch()
        if self._recorder is not None:  # while nobody waits for this
            self._recorder.trained(chunk.step)

    def _end_of_training(self, chunk: Chunk, start_s: float) -> None:
        end_s = time.monotonic()
        self._train_s += end_s - start_s
        self._tracer.span("train", start_s, end_s, step=chunk.step, chunk=chunk.index, items=len(chunk.items))

    def _commit(self, step: int, result: StepResult) -> None:
        message = Committed(
            step=step,
            version=result.version,
            parent_digest=result.parent_digest,
            digest=result.digest,
            metrics=result.metrics | self._speed(result),
            wait_s=self._wait_s,
            train_s=self._train_s,
        )
        self._link.send(message)
        self._link.update_hello(version=result.version)

    def _speed(self, result: StepResult) -> dict[str, float]:
        gpu = gpu_name(self._world.device)
        return speed(result.metrics, self._train_s, self._world.size, peak_bytes=result.peak_bytes, gpu=gpu)

    def _publish(self) -> None:
        sent, digest = self._copy(self._trainer.export())
        if digest != self._trainer.digest:
            raise SiteError(f"weights {self._trainer.version} changed since their step", "report this as a bug")
        self._link.send(sent)

    def _copy(self, named: Named) -> tuple[Published, str]:
        """Copy the weights for others: what to tell the controller, and their digest."""
        start_s = time.monotonic()
        weights_id = WeightsId(self._attempt, self._trainer.version)
        num_bytes, digest = self._publisher.publish(weights_id, named)
        end_s = time.monotonic()
        self._tracer.span("weights", start_s, end_s, version=weights_id.version, bytes=num_bytes)
        return Published(*weights_id, num_bytes, end_s - start_s), digest

    def _publish_again(self, wanted: PublishAgain) -> None:
        """All copies of this version are lost or bad. Between two chunks the weights are still unchanged."""
        if WeightsId(wanted.attempt, wanted.version) == WeightsId(self._attempt, self._trainer.version):
            log.warning("publishing version %d again", wanted.version)
            self._pass_on(wanted, [])
            self._publish()

    def _want_batch(self) -> None:
        self._wait_s = self._train_s = 0.0
        self._link.send(BatchWanted(self._trainer.version))

    def _go_on_or_end(self) -> None:
        """The connection broke. Lost chunks are sent again. If Committed may be lost, only a restore helps."""
        if self._trainer.version != self._agreed:
            raise LinkClosed(
                f"the connection to the controller broke at version {self._trainer.version}, which it may not know",
                "the trainer restarts from the newest checkpoint",
            )
        self._inbox.clear()
        self._link.send(Published(self._attempt, self._trainer.version, 0, 0.0))
        self._want_batch()

    # --- checkpoints, other ranks ------------------------------------------------------------

    def _save(self, save: Save) -> None:
        error = ""
        if save.version != self._trainer.version:
            error = f"the trainer is at version {self._trainer.version}, not {save.version}"
        else:
            self._agreed = save.version
            self._pass_on(save, [])
            try:
                self._trainer.save(Path(save.directory) / PART)
            except SiteError as problem:
                log.error("%s", problem)
                error = str(problem)
        self._link.send(Saved(save.version, messages.clip(error)))

    def _pass_on(self, message: Message, frames: list[Frame]) -> None:
        if self._world.size > 1:
            self._world.broadcast([messages.encode(message), *frames])
