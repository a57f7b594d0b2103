"""Starts, watches, restarts and ends the processes of a plan. The only parent process of a run; never imports torch.

    what ends                          what happens
    env, engine, reward, relay         restarted, with growing delays, until its budget is used up
    any trainer rank                   all ranks restart as the next attempt, from the newest checkpoint
    controller, by a crash             everything ends and restarts as the next attempt, with new keys
    controller, 0 / 5 / 2 or 3         the run is finished / drained / has failed for a reason it logged
    SIGINT, SIGTERM, SIGHUP            the controller is asked to checkpoint and end; a second signal kills everything
    SIGUSR1, the time limit is near    the same; a job is then requeued
    the place is about to kill all     the controller is asked to end without a checkpoint
    a node                             its processes start again when it is back; all ranks restart if it had one
    a node that will be lost           of the run's own job: like a signal; another: its engines end, or a checkpoint
    no progress                        stacks are dumped into the logs, the run ends

Everything runs in one thread around one selector: children, nodes, signals, the controller's first line of output, its
messages, and timers. No process outlives the supervisor that started it.
"""

from __future__ import annotations

import selectors
import signal
import time
from contextlib import suppress
from functools import partial
from typing import Literal

from rollart_hpc import checkpoint_dirs
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import RollartError, SiteError
from rollart_hpc.files import append_line
from rollart_hpc.launch import failures
from rollart_hpc.launch.controller_line import ControllerLine
from rollart_hpc.launch.crew import Crew
from rollart_hpc.launch.elastic.local import LocalWorkers, is_elastic
from rollart_hpc.launch.elastic.scaling import Elastic, ElasticWorkers
from rollart_hpc.launch.ownership import write_ownership
from rollart_hpc.launch.place import Came, Leaving, Left, LocalPlace, Place
from rollart_hpc.launch.plan import CONTROLLER, Plan
from rollart_hpc.launch.process import Child, wait_for
from rollart_hpc.launch.restarts import RestoreBudget, RoleBudget
from rollart_hpc.launch.room import resources_of
from rollart_hpc.launch.screen import Screen
from rollart_hpc.launch.signals import Signals
from rollart_hpc.launch.starting import Starter
from rollart_hpc.launch.timers import Timers
from rollart_hpc.launch.watchdog import Watchdog
from rollart_hpc.observe.status import Status, read_status
from rollart_hpc.processes import room
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import ExitCode, RunState
from rollart_hpc.wire.keys import make_keys
from rollart_hpc.wire.link import LinkClosed
from rollart_hpc.wire.messages import (
    Drain,
    Exited,
    Progress,
    SaveWanted,
    Silent,
    TrainerAttempt,
    Warned,
    WhoAreYou,
)

TICK_S = 1.0  # interval of checking time limits, scaling elastic workers and updating the screen
STOP_S = 10.0  # time for workers to end by themselves after the controller has ended
LEAVE_S = 3.0  # time for relays to free the memory of their nodes after a drain
TERM_S = 3.0
DRAIN_S = 60.0  # timeout for the checkpoint of a drained run, unless its place sets one
DUMP_S = 1.0

Outcome = Literal[RunState.FINISHED, RunState.DRAINED]
Why = Literal["", "signal", "limit"]


class Supervisor:
    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        plan: Plan,
        screen: Screen,
        place: Place | None = None,
        elastic_workers: ElasticWorkers | None = None,
    ) -> None:
        """`place` starts processes, `elastic_workers` starts elastic ones. Both default to this machine."""
        self.why: Why = ""  # why the run was asked to end: a signal, or its time limit
        self._place = place or LocalPlace()
        self._run, self._config, self._plan, self._screen = run, config, plan, screen
        self._selector = selectors.DefaultSelector()
        self._signals = Signals()
        self._crew = Crew(run, config, self._place, self._selector, self._ended)
        elastic_workers = elastic_workers or LocalWorkers(self._crew, config.reward.elastic)
        self._elastic = Elastic(config.reward, elastic_workers, self._note)
        self._timers = Timers()
        self._line = ControllerLine(run, plan.controller.node, self._selector, self._controller_ready, self._hear)
        self._roles = RoleBudget(config.restarts.per_role)
        self._restores = RestoreBudget(config.restarts.attempts)
        self._watchdog = Watchdog(config.timeouts)
        self._starter = Starter(plan, config, self._place, self._crew, self._timers, self._watchdog, self._note)
        self._controller_attempt = 0
        self._told: Progress | None = None  # the last report of this attempt's controller
        self._draining = self._hurries = False
        self._outcome: Outcome | None = None
        self._ticked_s = 0.0
        self._resources = resources_of(run, config, self._crew.all)

    def supervise(self) -> Outcome:
        """Runs until the run is over. Raises if the run fails. Leaves no process behind, whatever happens."""
        state: RunState = RunState.FAILED
        reason = "the supervisor failed"
        self._run.remove_store()  # a supervisor that was killed may have left one
        try:
            with self._signals:
                self._selector.register(self._signals, selectors.EVENT_READ, self._interrupted)
                if self._place.nodes is not None:
                    self._selector.register(self._place.nodes, selectors.EVENT_READ, self._nodes_changed)
                self._begin_attempt()
                while self._outcome is None:
                    self._turn()
                self._end_all(grace_s=STOP_S if self._outcome is RunState.FINISHED else 0.0)
            state, reason = self._outcome, ""
            return self._outcome
        except RollartError as error:
            reason = error.what
            raise
        finally:
            self._end_all()
            self._selector.close()
            self._run.remove_store()
            with suppress(RollartError):  # a full disk must not hide why the run ended
                write_ownership(self._run, self._crew.attempt, (), state, reason)

    # --- the loop ------------------------------------------------------------------------------

    def _turn(self) -> None:
        due_s, tick_s = self._timers.next_s(), self._ticked_s + TICK_S
        wakeup_s = tick_s if due_s is None else min(tick_s, due_s)
        for key, _ in self._selector.select(max(0.0, wakeup_s - time.monotonic())):
            key.data()
        self._timers.run_due()
        now = time.monotonic()
        if now - self._ticked_s >= TICK_S:
            self._ticked_s = now
            self._tick(now)
        self._crew.write()

    def _tick(self, now: float) -> None:
        told = self._told if self._line.is_open and not self._draining else None
        if told is not None:
            self._place.see(told, now)
            if self._elastic.tick(told, now):
                self._watchdog.touch(now)
        status = self._status()
        if status is not None:
            self._screen.show(status)
        for warning in room.watch(self._resources):
            self._note(warning)
        self._place.tick(now)
        if not self._starter.can_train():
            self._watchdog.touch(now)  # the run waits for nodes, and its place says for which
        if self._place.left_s() <= 0 and not self._draining:
            self._drain("limit", "the job is near its time limit")
        if self._draining and not self._hurries and self._place.is_closing():
            self._hurry("the job is about to be killed")
        verdict = self._watchdog.verdict(now)
        if verdict and self._outcome is None and self._crew.get(CONTROLLER):
            for child in self._crew.all():
                child.signal(signal.SIGUSR1)
            time.sleep(DUMP_S)
            raise SiteError(verdict, f"see the stacks that every process wrote to its log in {self._run.latest}/logs")

    # --- starting ------------------------------------------------------------------------------

    def _begin_attempt(self) -> None:
        swept = checkpoint_dirs.sweep(self._run)
        attempt = self._crew.attempt = self._controller_attempt = self._run.begin_attempt()
        self._run.prune_traces(self._config.observe.trace_attempts, attempt)
        for text in swept:
            self._note(text)
        make_keys(self._run.keys(attempt))
        self._watchdog.reset(time.monotonic())
        self._told = None
        self._starter.trainer_waits = False
        self._note(f"attempt {attempt} begins {self._origin()}")
        self._line.expect(self._start_controller)

    def _start_controller(self, ready: int) -> None:
        self._crew.start(self._plan.controller, "--ready-fd", str(ready), pass_fds=(ready,))

    def _controller_ready(self, address: str) -> None:
        """If it died before that, its pidfd reports it."""
        controller = self._crew.get(CONTROLLER)
        if not address or controller is None:
            return
        self._crew.address = address
        try:
            self._line.connect(address, self._controller_attempt)
        except RollartError:
            if controller.has_ended():
                return
            raise
        self._starter.start_workers()
        self._place.need_nodes()

    # --- endings -------------------------------------------------------------------------------

    def _ended(self, child: Child) -> None:
        if child not in self._crew:
            return  # we ended it in this turn of the loop
        self._settle(child, self._crew.take_out(child).reap())

    def _settle(self, child: Child, code: int) -> None:
        """The process has ended and is no longer watched: tell the controller, decide what to do."""
        self._note(f"{child.name} ended: {failures.describe_end(child, code)}", is_news=code != 0)
        if child.name == CONTROLLER:
            self._controller_ended(child, code)
            return
        for proc, incarnation in child.order.members:
            self._line.tell(Exited(proc.name, incarnation, code))
        self._worker_ended(child, code)

    def _controller_ended(self, child: Child, code: int) -> None:
        if code == 0:
            self._outcome = RunState.FINISHED
        elif code == ExitCode.DRAINED:
            wait_for(self._crew.of("relay"), LEAVE_S)
            self._outcome = RunState.DRAINED
        elif self._draining:
            self._outcome = RunState.DRAINED
        elif code in (ExitCode.USER, ExitCode.ENVIRONMENT):
            status = self._status()
            reported = status.reason if status is not None and status.state is RunState.FAILED else ""
            raise failures.reason_of(child, code, reported)
        else:
            delay_s = self._next_restore(child, code)
            self._end_all()
            self._timers.after(delay_s, self._begin_attempt)

    def _worker_ended(self, child: Child, code: int) -> None:
        if code == 0 or self._draining:
            return  # it was asked to end
        if child.is_orphan:
            self._watchdog.excuse(child.proc)
            if child.proc.role == "trainer":
                self._restore_trainer(child, 0.0)
        elif child.order.seats:
            self._leave_world(child)
        elif code == ExitCode.USER:
            raise failures.reason_of(child, code)
        elif is_elastic(child):
            self._elastic.failed(f"{child.name} ended: {failures.describe_end(child, code)}")
        elif child.proc.role == "trainer":
            self._restore_trainer(child, self._next_restore(child, code))
        else:
            self._start_again(child, code)

    def _leave_world(self, child: Child) -> None:
        """A broken MPI world can't be repaired: its relays run as single processes over gloo until the next attempt."""
        names = ", ".join(proc.name for proc in child.order.seats)
        self._note(f"the MPI world of {names} has ended: restarting each of them alone, with gloo")
        for proc in child.order.seats:
            self._crew.start(proc)

    def _start_again(self, child: Child, code: int) -> None:
        delay_s = self._roles.next_delay_s(child.name, time.monotonic() - child.started_s)
        if delay_s is not None:
            self._note(f"restarting {child.name} in {delay_s:g} s")
            self._timers.after(delay_s, partial(self._starter.start, child.proc))
        elif child.proc.role == "relay" or not self._crew.of(child.proc.role):
            raise failures.gave_up(child, code, f"restarts.per_role = {self._config.restarts.per_role}", self._run)
        else:
            self._starter.give_up(child.proc)
            self._note(f"{child.name} has used up restarts.per_role: the run continues without it")

    def _restore_trainer(self, child: Child, delay_s: float) -> None:
        for rank, rank_code in self._crew.end(self._crew.of("trainer")):
            self._line.tell(Exited(rank.name, rank.order.incarnation, rank_code))
        if not self._starter.trainer_waits:
            self._timers.after(delay_s, self._begin_trainer_attempt)

    def _begin_trainer_attempt(self) -> None:
        """Ranks start when all their nodes are there."""
        self._crew.attempt = self._run.begin_attempt(under=self._controller_attempt)
        self._run.prune_traces(self._config.observe.trace_attempts, self._controller_attempt)
        self._watchdog.touch(time.monotonic())
        self._note(f"attempt {self._crew.attempt} of the trainer begins {self._origin()}")
        self._line.tell(TrainerAttempt(self._crew.attempt))
        self._starter.start_trainer()

    def _next_restore(self, child: Child, code: int) -> float:
        newest = self._run.newest_checkpoint()
        delay_s = self._restores.next_delay_s(newest.step if newest else -1, is_known=code == ExitCode.ENVIRONMENT)
        if delay_s is not None:
            return delay_s
        if code == ExitCode.ENVIRONMENT:
            raise failures.reason_of(child, code)
        raise failures.gave_up(child, code, f"restarts.attempts = {self._config.restarts.attempts}", self._run)

    def _end_all(self, grace_s: float = 0.0) -> None:
        """End every process and cancel pending restarts."""
        self._timers.clear()
        self._elastic.end()
        self._line.close("the run ends")
        self._crew.end(self._crew.all(), grace_s, TERM_S if grace_s else 0.0)

    # --- nodes ---------------------------------------------------------------------------------

    def _nodes_changed(self) -> None:
        assert self._place.nodes is not None
        for change in self._place.nodes.take():
            if isinstance(change, Came):
                self._node_came(change)
            elif isinstance(change, Left):
                self._note(f"node {change.node} is lost: {change.reason}")
                self._starter.left(change.node)
                for child in [child for child in self._on(change.node) if child.has_ended()]:
                    self._ended(child)  # before the node comes again
            elif isinstance(change, Leaving):
                self._node_leaves(change)
        self._crew.changed()

    def _node_came(self, change: Came) -> None:
        listed = f", for {', '.join(proc.name for proc in change.guests)}" if change.guests else ""
        self._note(f"node {change.node} is there{listed}")
        self._starter.came(change)
        if self._line.is_open and not self._draining:
            self._starter.start_on(change.node)

    def _node_leaves(self, change: Leaving) -> None:
        there = self._on(change.node)
        if self._place.shares_fate(change.node):
            self._drain("signal", f"node {change.node}: {change.reason}")
        elif any(child.proc.role == "trainer" for child in there):
            self._note(f"node {change.node} leaves soon: {change.reason}; saving a checkpoint")
            self._line.tell(SaveWanted())
        else:
            self._note(f"node {change.node} leaves soon: {change.reason}; ending its processes")
            for child, code in self._crew.end(there):
                self._watchdog.excuse(child.proc)
                self._line.tell(Exited(child.name, child.order.incarnation, code))
            self._place.release(change.node)

    def _on(self, node: str) -> list[Child]:
        return [child for child in self._crew.all() if child.proc.node == node]

    # --- the user and the controller -----------------------------------------------------------

    def _interrupted(self) -> None:
        for number in self._signals.take():
            self._drain("limit" if number == signal.SIGUSR1 else "signal", signal.Signals(number).name)

    def _drain(self, why: Why, cause: str) -> None:
        """Save a checkpoint and end the run. Without a controller, end it at once."""
        if self._draining and self._place.is_patient:
            return
        self.why = self.why or why
        if not self._draining:
            self._place.told_to_end()
        if self._draining or not self._line.is_open:
            self._note(f"{cause}: ending every process now")
            self._outcome = RunState.DRAINED
            return
        self._draining = True
        again = "" if self._place.is_patient else " (signal again to end it now)"
        self._note(f"{cause}: saving a checkpoint, then ending the run{again}")
        self._line.tell(Drain("limit" if why == "limit" else "cancelled"))
        drain_s = self._place.save_s(DRAIN_S) if why == "limit" else DRAIN_S
        self._timers.after(drain_s, partial(self._hurry, f"no checkpoint within {drain_s:.0f} s"))

    def _hurry(self, cause: str) -> None:
        """Ask the workers, through the controller, to leave: a killed one leaves weights in its node's memory."""
        self._hurries = True
        self._note(f"{cause}: ending every process now")
        self._line.tell(Drain("cancelled", at_once=True))
        self._timers.after(LEAVE_S, self._give_up)

    def _give_up(self) -> None:
        self._outcome = RunState.DRAINED

    def _hear(self) -> None:
        """Handle the controller's messages. If it died, its pidfd reports it."""
        silent: list[Silent] = []
        try:
            while (message := self._line.received()) is not None:
                if isinstance(message, Warned) and self._shares_fate(message.name):
                    self._drain("signal", f"{message.name} was warned that it will be ended")
                if isinstance(message, WhoAreYou):  # the connection broke: what we said last may be lost
                    self._line.tell(TrainerAttempt(self._crew.attempt))
                if isinstance(message, Silent):
                    silent.append(message)
                if isinstance(message, Progress):
                    self._told = message
                    self._watchdog.see(message, time.monotonic())
        except LinkClosed as error:
            self._note(str(error))
            self._line.close("closed")
        for process in silent:
            self._end_silent(process)

    def _shares_fate(self, name: str) -> bool:
        child = self._crew.get(name)
        return child is not None and self._place.shares_fate(child.proc.node)

    def _end_silent(self, process: Silent) -> None:
        """End and replace a process that is alive but stuck: stopped, or in a loop that blocks all its threads."""
        child = self._crew.behind(process.name, process.incarnation)
        if child is not None and not self._draining:
            self._note(f"{process.name} does not answer: ending it")
            for ended, code in self._crew.end([child]):
                self._settle(ended, code or -signal.SIGKILL)

    def _status(self) -> Status | None:
        """The last status file of this attempt's controller, to show the user. Decisions use its messages instead."""
        status = None
        with suppress(RollartError):  # the controller soon overwrites a damaged one
            status = read_status(self._run.status)
        return status if status is not None and status.attempt >= self._controller_attempt else None

    def _note(self, text: str, is_news: bool = True) -> None:
        with suppress(RollartError):  # e.g. a full disk; the message still goes to the screen
            append_line(self._run.log(self._crew.attempt, "supervisor"), failures.log_line("supervisor", text))
        if is_news:
            self._screen.say(text)

    def _origin(self) -> str:
        """What the next attempt begins from. Raises if only damaged checkpoints are left."""
        checkpoint_dirs.must_have_one(self._run)
        return checkpoint_dirs.origin(self._run)
