"""The service of an env worker: plays many trajectories at once, each with its own environment.

    Play -> reset -> TurnWanted -> Generated -> environment's turn -> TurnWanted -> ... -> Ended

Owns the trajectories in progress. One thread and one selector serve the link, all environments and the next deadline.
A failure ends only its own trajectory, with a status. The worker ends with `Stop` or when its link closes.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Mapping
from zlib import crc32

import jinja2

from rollart_hpc.config.schema import ObserveConfig, TaskConfig
from rollart_hpc.envs.host import Happened, Host
from rollart_hpc.envs.render import Renderer
from rollart_hpc.envs.trajectory import EnvTrajectory
from rollart_hpc.observe.plays import is_chosen
from rollart_hpc.observe.trace import Tracer
from rollart_hpc.types import Frame, TokenRecord
from rollart_hpc.vocabulary import DONE, DropReason
from rollart_hpc.wire.link import Link
from rollart_hpc.wire.messages import AnyMessage, Cancel, Ended, Generated, Play, Resend, Stop, WhoAreYou

log = logging.getLogger("rollart_hpc.env")


class Service:
    def __init__(
        self,
        tasks: Mapping[str, TaskConfig],
        *,
        renderer: Renderer,
        host: Host,
        link: Link,
        tracer: Tracer,
        selector: selectors.BaseSelector,
        observe: ObserveConfig | None = None,
    ) -> None:
        self._observe = observe or ObserveConfig()
        self._tasks = tasks
        self._renderer = renderer
        self._host = host
        self._link = link
        self._tracer = tracer
        self._selector = selector
        self._playing: dict[str, EnvTrajectory] = {}  # by trajectory; the host's slot is the EnvTrajectory itself
        self._traced: set[tuple[str, str]] = set()  # (task, exception) whose traceback has been logged
        self._stopped = False

    def run(self) -> None:
        self._selector.register(self._link, selectors.EVENT_READ, self._receive)
        while not self._stopped:
            self._link.rest()
            ready = self._selector.select(self._host.wait_s())
            self._link.turn()
            for key, _ in ready:
                key.data()
            for happened in self._host.collect():
                self._happened(happened)

    # --- from the controller -----------------------------------------------------------------------

    def _receive(self) -> None:
        self._tracer.set_offset(self._link.clock_offset_s)
        while not self._stopped and (received := self._link.recv(0)) is not None:
            self._handle(*received)

    def _handle(self, message: AnyMessage, frames: list[Frame]) -> None:
        match message:
            case Play():
                self._play(message)
            case Generated():
                self._generated(message, frames)
            case Resend():
                self._resend(message)
            case Cancel():
                self._cancel(message)
            case WhoAreYou():  # the controller considered us lost and issues all trajectories again
                for trajectory in list(self._playing.values()):
                    self._drop(trajectory)
            case Stop():
                log.info("stopping: %s", message.reason)
                self._stopped = True
            case _:
                log.warning("ignoring unexpected message %s", type(message).__name__)

    def _play(self, play: Play) -> None:
        earlier = self._playing.get(play.trajectory)
        if earlier is not None:
            self._drop(earlier)
        if play.task not in self._tasks:
            detail = f"unknown task {play.task!r}"
            self._link.send(
                Ended(play.trajectory, play.issue, DropReason.RESET_FAILED, detail, 0, 0, []), b"", b"", b"", b""
            )
            return
        trajectory = EnvTrajectory(play, self._tasks[play.task], self._renderer)
        self._playing[play.trajectory] = trajectory
        # A new issue of the same trajectory must not hit the same injected crash again.
        trouble_seed = crc32(f"{play.trajectory}/{play.sample_seed}/{play.issue}".encode())
        self._host.reset(trajectory, play.task, play.seed, trouble_seed)

    def _generated(self, message: Generated, frames: list[Frame]) -> None:
        trajectory = self._playing.get(message.trajectory)
        if trajectory is None or not trajectory.is_waiting:
            return  # superseded
        try:
            text = trajectory.answer(TokenRecord.from_frames(frames))
        except (ValueError, OverflowError) as error:  # ids that no tokenizer has
            self._fail(trajectory, f"unreadable answer: {error}")
            return
        self._host.step(trajectory, text)

    def _resend(self, message: Resend) -> None:
        trajectory = self._playing.get(message.trajectory)
        if trajectory is None or not trajectory.is_waiting:
            return
        if (message.issue, message.turn) == (trajectory.play.issue, trajectory.num_turns):
            wanted, ids = trajectory.wanted(resend=True)
            self._link.send(wanted, ids)

    def _cancel(self, message: Cancel) -> None:
        trajectory = self._playing.get(message.trajectory)
        if trajectory is not None and trajectory.play.issue == message.issue:
            self._drop(trajectory)

    # --- from the environments ---------------------------------------------------------------------

    def _happened(self, happened: Happened) -> None:
        trajectory = happened.slot
        assert isinstance(trajectory, EnvTrajectory)
        if self._playing.get(trajectory.play.trajectory) is not trajectory:
            return  # cancelled in the same round
        is_reset = trajectory.num_turns == 0
        self._account(trajectory, happened, is_reset)
        if happened.kind == "failed":
            self._end(trajectory, happened)
            return
        try:
            if is_reset:
                trajectory.begin(happened.observation)
            elif not happened.done:
                trajectory.observe(happened.observation)
        except jinja2.TemplateError as error:
            self._fail(trajectory, f"the chat template can't render the conversation: {error}")
            return
        self._go_on(trajectory, happened, is_reset)

    def _go_on(self, trajectory: EnvTrajectory, happened: Happened, is_reset: bool) -> None:
        if happened.done:
            self._end(trajectory, happened)
        elif trajectory.room >= 1:
            wanted, ids = trajectory.wanted()
            self._link.send(wanted, ids)
        elif is_reset:
            self._fail(trajectory, f"the first prompt alone reaches max_tokens = {trajectory.task.max_tokens}")
        else:
            trajectory.is_cut = True
            self._host.finish(trajectory)

    def _account(self, trajectory: EnvTrajectory, happened: Happened, is_reset: bool) -> None:
        if is_reset:
            trajectory.reset_s = happened.seconds
        else:
            trajectory.env_s += happened.seconds
        now = time.monotonic()
        name = "environment.reset" if is_reset else "environment.turn"
        self._tracer.span(name, now - happened.seconds, now, task=trajectory.play.task, slot=trajectory.play.trajectory)

    # --- ends --------------------------------------------------------------------------------------

    def _fail(self, trajectory: EnvTrajectory, detail: str) -> None:
        self._end(trajectory, Happened(trajectory, "failed", status=DropReason.ENV_ERROR, detail=detail))

    def _end(self, trajectory: EnvTrajectory, last: Happened) -> None:
        name, observe = trajectory.play.trajectory, self._observe
        is_kept = is_chosen(name, observe.transcripts)
        ended, frames = trajectory.ended(
            last, is_kept=is_kept, keeps_tokens=is_kept and is_chosen(name, observe.transcript_tokens)
        )
        if ended.status != DONE:
            log.info("%s: %s: %s", ended.trajectory, ended.status, ended.detail)
            self._trace_once(trajectory.play.task, last)
        self._drop(trajectory)
        self._link.send(ended, *frames)

    def _trace_once(self, task: str, failed: Happened) -> None:
        kind = task, failed.detail.partition(":")[0]
        if failed.trace and kind not in self._traced:
            self._traced.add(kind)
            log.warning("the first %s of task %s:\n%s", kind[1], task, failed.trace.rstrip())

    def _drop(self, trajectory: EnvTrajectory) -> None:
        del self._playing[trajectory.play.trajectory]
        self._host.release(trajectory)
