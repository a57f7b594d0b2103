"""The controller: connects the hub socket to the flow core. Owns the loop; decides nothing itself.

    message -> member event or flow event -> core -> commands -> messages
                                                  -> ledger, metrics, status, checkpoints (journal)

Runs without torch. Its exit code belongs to the state in which the run ended (`vocabulary.RunState`).
"""

from __future__ import annotations

import gc
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from rollart_hpc import descriptors
from rollart_hpc.config.automatic import automatic_tasks
from rollart_hpc.config.resolved import read_site
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import RollartError
from rollart_hpc.estimate.pools import engine_figures, shape_for
from rollart_hpc.files import write_json
from rollart_hpc.flow import events as ev
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.rules import FlowRules, rules_of
from rollart_hpc.model_files import vocabulary_size
from rollart_hpc.processes.lifetime import raise_file_limit
from rollart_hpc.processes.memory import keep_freed_memory
from rollart_hpc.roles import checkpoints
from rollart_hpc.roles.checks import Checks, Forged, Malformed, failure_of
from rollart_hpc.roles.journal import Journal
from rollart_hpc.roles.payloads import TRANSCRIPT, Payloads, chunk_frames
from rollart_hpc.roles.recording import Recorder
from rollart_hpc.roles.start import Start, run_role
from rollart_hpc.roles.translate import event_of, message_of
from rollart_hpc.rundir import RunDir
from rollart_hpc.types import Frame, Role
from rollart_hpc.vocabulary import DropReason, EventKind, ProcessState, RunState
from rollart_hpc.wire import keys, members
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.hub import listen
from rollart_hpc.wire.interfaces import address_of

SUPERVISOR = "supervisor"
TICK_S = 0.2
RELEASES = 64  # payloads freed per turn of the loop: a step frees thousands
PROGRESS_S = 1.0  # minimum time between two Progress messages to the supervisor
FAREWELL_S = 15.0
CHECKPOINT_FILES = 32  # descriptors that writing a checkpoint needs at most

log = logging.getLogger("rollart_hpc.controller")


class Controller:
    def __init__(self, start: Start) -> None:
        self.config, self.run_dir, self.attempt = start.config, start.run, start.attempt
        self.payloads = Payloads()
        saved, damage = None, list[str]()
        if start.checkpoint:
            saved, damage = checkpoints.load_newest(start.run, start.checkpoint, self.payloads)
        self.core = Core(_rules(start.config, start.run), start.attempt, saved)
        self._recorder: Recorder | None = None
        if limit := start.config.observe.record_bytes:
            self._recorder = Recorder(start.run.recording(start.attempt), self.core, saved, limit)
        self.payloads.keep_only(self.core.trajectories.all)
        self.checks = Checks(self.core, self.payloads, vocabulary_size(start.run.model))
        self.hub = listen(address_of(start.control), start.ports, keys.load_server(start.run.keys(start.attempt)))
        timeouts = start.config.timeouts
        self.members = members.Members(
            self.hub,
            attempt=start.attempt,
            heartbeat_s=timeouts.heartbeat_s,
            silence_s=timeouts.silence_s,
            judge=self.checks.judge,
        )
        self.journal = Journal(start.run, start.config, self.core, self.hub.counters)
        if saved is not None:
            self.journal.restored(saved["version"], start.attempt, damage)
        self.pending: deque[ev.Event] = deque()
        self.ending: RunState | None = None
        self._silent: dict[str, tuple[float, ms.Hello]] = {}  # lost processes that may come back: deadline and Hello
        self._next_tick = 0.0
        self._told: ms.Progress | None = None  # last one sent to the supervisor
        self._told_s = 0.0
        self._commit: ms.Committed | None = None
        self._to_release: deque[str] = deque()  # trajectories whose payloads are freed a few at a time
        self._forgets: dict[str, list[str]] = {}  # trajectories that each engine may forget
        self._carry_out: dict[type, Callable[[Any], None]] = {
            ev.Generate: self._generate, ev.Deliver: self._deliver, ev.Score: self._score,
            ev.Release: lambda c: self._to_release.append(c.trajectory), ev.SendChunk: self._send_chunk,
            ev.RecordStep: self._record_step, ev.SaveCheckpoint: self._save_checkpoint,
            ev.ValidationDone: lambda c: self.journal.validation(c.version), ev.StopRun: self._stop_run,
            ev.Warn: self._warn, ev.Replace: self._replace, ev.Forget: self._forget, ev.AskAgain: self._ask_again,
        }  # fmt: skip

    @property
    def address(self) -> str:
        return f"tcp://{self.hub.host}:{self.hub.port}"

    def run(self) -> int:
        while self.ending is None:
            self._receive(
                0.0 if self.core.has_backlog or self._to_release else max(0.0, self._next_tick - time.monotonic())
            )
            self._tick_if_due()
        self._farewell(self.ending)
        assert self.ending.exit_code is not None
        return self.ending.exit_code

    # --- in ----------------------------------------------------------------------------------

    def _receive(self, timeout_s: float) -> None:
        for name, message, frames in self.hub.poll(timeout_s):
            self._take(name, message, frames)
            self._settle()
        if self.core.has_backlog:
            self.pending.append(ev.GoOn())
            self._settle()
        for _ in range(min(len(self._to_release), RELEASES)):
            self.payloads.release(self._to_release.popleft())

    def _take(self, name: str, message: ms.AnyMessage, frames: list[Frame]) -> None:
        for change in self.members.handle(name, message):
            self._member(change)
        try:
            is_expected = self.checks.check(name, message, frames)
            event = event_of(name, message, frames)
        except Forged as problem:
            self.hub.complain("forged", f"{type(message).__name__} from {name}: {problem}")
            return
        except Malformed as problem:
            self._fail(name, message, str(problem))
            return
        if name in self.core.bench.aside and not isinstance(message, ms.Heartbeat):
            self.pending.append(ev.Beat(name, work=1))  # it still works, or works again
        self.journal.saw(name, message)
        if is_expected:
            self._keep(message, frames)
        if event is not None:
            self.pending.append(event)

    def _fail(self, name: str, message: ms.AnyMessage, why: str) -> None:
        """A malformed message ends its trajectory. Its environment is told, because it does not know."""
        self.hub.complain(DropReason.MALFORMED, f"{type(message).__name__} from {name}: {why}")
        event = failure_of(name, message, f"{type(message).__name__}: {why}")
        if event is not None:
            self.pending.append(event)
        if isinstance(message, ms.TurnWanted):
            self._send(name, ms.Cancel(message.trajectory, message.issue, why))

    def _keep(self, message: ms.AnyMessage, frames: list[Frame]) -> None:
        """Keep payloads that the core waits for, until a command names them."""
        if isinstance(message, ms.TurnWanted):
            self.payloads.turns[message.trajectory] = (message, frames)
        elif isinstance(message, ms.Ended):
            self.payloads.ended[message.trajectory] = (message, frames)
        elif isinstance(message, ms.Generated):
            self.payloads.answers[message.trajectory] = (message, frames)
        elif isinstance(message, ms.Scored):
            self.payloads.scored(message)
        elif isinstance(message, ms.Committed):
            self._commit = message
        elif isinstance(message, ms.Saved):
            self._saved(message)
        elif isinstance(message, ms.Warned):
            self.hub.send(SUPERVISOR, message)
        elif isinstance(message, ms.TrainerAttempt):
            self.checks.trainer_attempt = max(self.checks.trainer_attempt, message.attempt)

    def _member(self, change: members.Joined | members.Lost) -> None:
        hello = change.hello
        if isinstance(change, members.Joined):
            self._silent.pop(hello.name, None)
            self.journal.joined(hello)
            if hello.name == SUPERVISOR:
                self._told = None
            if hello.role == "trainer" and hello.capacity and hello.attempt != self.core.attempt:
                self.journal.restored(hello.version, hello.attempt)
            role = cast(Role, hello.role)  # checked by members
            place = hello.node, hello.pool, hello.capacity
            engine = hello.num_ranks, hello.kv_tokens, hello.speed
            self.pending.append(ev.Joined(hello.name, role, *place, hello.attempt, hello.version, *engine))
        else:
            self.journal.gone(hello, change.reason, change.state)
            if change.state is ProcessState.SILENT:
                self._silent[hello.name] = (time.monotonic() + self.config.timeouts.silence_s, hello)
            self.pending.append(ev.Lost(hello.name, change.reason))

    def _tick_if_due(self) -> None:
        now = time.monotonic()
        if now < self._next_tick:
            return
        self._next_tick = now + TICK_S
        for change in self.members.tick(now):
            self._member(change)
        self.pending.append(ev.Tick(now))
        self._settle()
        self._give_up_silent(now)
        self.journal.tick(now)
        if now >= self._told_s + PROGRESS_S:
            self._told_s = now
            self._tell_progress()
            self._send_forgets()
            if self._recorder is not None:
                self._recorder.flush()

    def _tell_progress(self) -> None:
        """Tell the supervisor (watchdog, elastic scaling), if something has changed."""
        progress = self.journal.progress()
        if progress != self._told and SUPERVISOR in self.core.workers and self.hub.send(SUPERVISOR, progress):
            self._told = progress

    def _give_up_silent(self, now: float) -> None:
        """A process that was only busy comes back. One that stays silent for `silence_s` more is stopped or stuck."""
        for name, (due_s, hello) in list(self._silent.items()):
            if now >= due_s:
                del self._silent[name]
                self.hub.send(SUPERVISOR, ms.Silent(name, hello.incarnation))

    # --- out ---------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Feed all pending events to the core and carry out its commands."""
        while self.pending:
            event = self.pending.popleft()
            for command in self.core.handle(event):
                carry_out = self._carry_out.get(type(command))
                if carry_out is not None:
                    carry_out(command)
                else:
                    receiver_and_message = message_of(command)
                    assert receiver_and_message is not None, command
                    self._send(*receiver_and_message)

    def _send(self, name: str, message: ms.Message, *frames: Frame) -> None:
        if not self.hub.send(name, message, *frames):
            for change in self.members.lose(name, "unreachable"):
                self._member(change)

    def _generate(self, c: ev.Generate) -> None:
        turn, frames = self.payloads.turns[c.trajectory]
        message = ms.Generate(
            c.request, c.trajectory, turn.prefix_tokens, turn.prefix_hash, turn.full, turn.max_new_tokens,
            c.temperature, c.seed, c.prefill_only, c.kv, self._forgets.pop(c.engine, []),
        )  # fmt: skip
        self._send(c.engine, message, *frames)

    def _ask_again(self, c: ev.AskAgain) -> None:
        self.payloads.asked_again[c.trajectory] = c.issue, c.turn
        self._send(c.worker, ms.Resend(c.trajectory, c.issue, c.turn))

    def _forget(self, c: ev.Forget) -> None:
        """Sent with the engine's next request: that is when it needs the memory. Idle engines wait a second."""
        self._forgets.setdefault(c.engine, []).append(c.trajectory)

    def _send_forgets(self) -> None:
        forgets, self._forgets = self._forgets, {}
        for engine, trajectories in forgets.items():
            self._send(engine, ms.Forget(trajectories))

    def _deliver(self, c: ev.Deliver) -> None:
        message, frames = self.payloads.answers.pop(c.trajectory)
        assert message.request == c.request
        self._send(c.worker, message, *frames)

    def _score(self, c: ev.Score) -> None:
        _, frames = self.payloads.ended[c.trajectory]
        self._send(c.worker, ms.ScoreWanted(c.trajectory, c.issue, c.task), frames[TRANSCRIPT])

    def _send_chunk(self, c: ev.SendChunk) -> None:
        items = [
            self.payloads.chunk_item(member.id, group.id, group.task, member.reward, member.success)
            for group in c.groups
            for member in group.members
        ]
        chunk, frames = chunk_frames(items, c.step, c.index, c.last)
        self._send(c.trainer, chunk, *frames)

    # --- steps, checkpoints, the end ---------------------------------------------------------

    def _record_step(self, c: ev.RecordStep) -> None:
        assert self._commit is not None
        self.journal.step(c, self._commit)

    def _save_checkpoint(self, c: ev.SaveCheckpoint) -> None:
        descriptors.need(CHECKPOINT_FILES)
        try:
            directory = checkpoints.begin(self.run_dir, self.core.snapshot(), self.payloads)
        except (OSError, RollartError) as error:
            log.error("could not write checkpoint %d: %s", c.version, error)
            checkpoints.abandon(self.run_dir, c.version)
            self.pending.append(ev.Saved(c.version, str(error)))
            return
        self._send(c.trainer, ms.Save(c.version, str(directory)))

    def _saved(self, message: ms.Saved) -> None:
        """The trainer has written its part: commit the checkpoint before the core gets the event."""
        if message.error or message.version != self.core.saving:
            log.warning("discarding checkpoint %d: %s", message.version, message.error or "superseded")
            checkpoints.abandon(self.run_dir, message.version)
            return
        descriptors.need(CHECKPOINT_FILES)
        try:
            checkpoints.commit(self.run_dir, message.version, self.core.attempt, self.config.checkpoint.keep)
        except (OSError, RollartError) as error:
            log.error("could not commit checkpoint %d: %s", message.version, error)
            checkpoints.abandon(self.run_dir, message.version)
            # The core gets this before the trainer's event, which then finds that nothing is being saved.
            self.pending.append(ev.Saved(message.version, str(error)))
            return
        self.journal.event(EventKind.CHECKPOINT, str(message.version))
        gc.collect()

    def _replace(self, c: ev.Replace) -> None:
        """Like a silent process: the supervisor ends it and starts it again, if it was the one that started it."""
        hello = self.members.alive.get(c.worker)
        if hello is not None:
            self.hub.send(SUPERVISOR, ms.Silent(hello.name, hello.incarnation))

    def _warn(self, c: ev.Warn) -> None:
        log.warning("%s: %s: %s", c.what, c.task, c.detail)
        self.journal.event(c.what, c.task, c.detail)

    def _stop_run(self, c: ev.StopRun) -> None:
        log.info("%s: %s", c.state, c.reason)
        self.ending = c.state
        self.journal.ended(c.state, c.reason)
        self._tell_progress()

    def _farewell(self, ending: RunState) -> None:
        """Tell all processes to stop and wait a moment for them to leave."""
        for name, hello in self.members.alive.items():
            if hello.role != SUPERVISOR:
                self.hub.send(name, ms.Stop(ending))
        deadline = time.monotonic() + FAREWELL_S
        while time.monotonic() < deadline and any(h.role != SUPERVISOR for h in self.members.alive.values()):
            for name, message, _ in self.hub.poll(0.2):
                self.members.handle(name, message)
        self.journal.close()
        self.hub.close()
        if self._recorder is not None:
            self._recorder.close()


def _rules(config: RunConfig, run: RunDir) -> FlowRules:
    if not automatic_tasks(config):
        return rules_of(config)
    return rules_of(config, engine_figures(config, read_site(run.site), shape_for(config, run.model)))


def _announce(start: Start, controller: Controller) -> None:
    """Publish the address: to the supervisor through its pipe, to late joiners in a file."""
    content = {"address": controller.address, "attempt": start.attempt}
    write_json(RunDir(start.run.path).controller(start.attempt), content)
    if start.ready_fd is not None:
        os.write(start.ready_fd, json.dumps(content).encode() + b"\n")
        os.close(start.ready_fd)


def _stop_collecting_garbage() -> None:
    """A collection looks at all live objects and delays every turn. The core leaves no reference cycles behind, so
    collections run only when a checkpoint is saved."""
    gc.collect()
    gc.freeze()
    gc.disable()


def main(start: Start) -> int:
    raise_file_limit()
    keep_freed_memory()
    controller = Controller(start)
    _stop_collecting_garbage()
    _announce(start, controller)
    return controller.run()


if __name__ == "__main__":
    run_role("controller", main)
