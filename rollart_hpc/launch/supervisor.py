"""Starts the processes of a plan, watches them, starts them again, ends them. The only parent in a run; never torch.

    what ends                          what happens
    env, engine, reward, relay         started again, a little later each time, within its budget
    any trainer rank                   all ranks start again as the next attempt, from the newest checkpoint
    controller, by a crash             everything ends and starts again as the next attempt, new keys
    controller, 0 / 5 / 2 or 3         the run is finished / drained / has failed for a reason it logged
    SIGINT, SIGTERM, SIGHUP            the controller is asked to save and end; the second time all are killed
    nothing moves                      stacks are dumped into the logs, the run ends

Everything happens in one thread around one selector: pidfds, signals, the controller's first line,
its messages, and timers. A process the supervisor has started never outlives it.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Protocol

from rollart_hpc import __version__
from rollart_hpc.config.process import EXIT_DRAINED
from rollart_hpc.config.rundir import RunDir
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import EXIT_ENVIRONMENT, EXIT_USER, RollartError, SiteError, UserError
from rollart_hpc.files import append_line, read_json
from rollart_hpc.launch import logs, ownership
from rollart_hpc.launch.command import role_command, role_environment
from rollart_hpc.launch.plan import CONTROLLER, Plan, Proc
from rollart_hpc.launch.process import Child, end_children, new_incarnation, start_child
from rollart_hpc.launch.restarts import RestoreBudget, RoleBudget
from rollart_hpc.launch.signals import Signals
from rollart_hpc.launch.watchdog import Watchdog
from rollart_hpc.wire.keys import load_client, make_keys
from rollart_hpc.wire.link import Link, LinkClosed
from rollart_hpc.wire.messages import Drain, Exited, Hello, Message

TICK_S = 1.0  # how often the status is looked at
WELCOME_S = 20.0  # the controller answers the supervisor within
STOP_S = 10.0  # workers get so long to end by themselves after the controller
TERM_S = 3.0
DUMP_S = 1.0

Outcome = Literal["finished", "drained"]


class Screen(Protocol):
    """What the user sees of the run."""

    def say(self, text: str) -> None: ...
    def show(self, status: dict[str, Any]) -> None: ...


class Supervisor:
    def __init__(self, run: RunDir, config: RunConfig, plan: Plan, screen: Screen, drain_s: float = 60.0) -> None:
        self._run, self._config, self._plan, self._screen, self._drain_s = run, config, plan, screen, drain_s
        self._selector = selectors.DefaultSelector()
        self._signals = Signals()
        self._children: dict[str, Child] = {}
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._roles = RoleBudget(config.restarts.per_role)
        self._restores = RestoreBudget(config.restarts.attempts)
        self._watchdog = Watchdog(config.timeouts, plan)
        self._attempt = 0  # of the trainer and of whatever starts now
        self._controller_attempt = 0
        self._address = ""
        self._link: Link | None = None
        self._draining = False
        self._outcome: Outcome | None = None
        self._ticked_s = 0.0

    def supervise(self) -> Outcome:
        """Until the run is over. A failure is raised; whatever happens, no process is left."""
        state, reason = "failed", ""
        self._run.remove_store()  # of a supervisor that was killed
        try:
            with self._signals:
                self._selector.register(self._signals, selectors.EVENT_READ, self._interrupted)
                self._begin_attempt()
                while self._outcome is None:
                    self._turn()
                if self._outcome == "finished":
                    self._end_all(grace_s=STOP_S)
            state = self._outcome
            return self._outcome
        except RollartError as error:
            reason = error.what
            raise
        finally:
            self._end_all()
            self._selector.close()
            self._run.remove_store()
            with suppress(RollartError):  # a full disk must not hide why the run ended
                ownership.write_ownership(self._run, self._attempt, (), state, reason)

    # --- the loop ----------------------------------------------------------------------------

    def _turn(self) -> None:
        wakeup_s = min([self._ticked_s + TICK_S, *(due_s for due_s, _ in self._timers)])
        for key, _ in self._selector.select(max(0.0, wakeup_s - time.monotonic())):
            key.data()
        now = time.monotonic()
        due = [timer for timer in self._timers if timer[0] <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for _, action in due:
            action()
        if now - self._ticked_s >= TICK_S:
            self._ticked_s = now
            self._tick(now)

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + delay_s, action))

    def _tick(self, now: float) -> None:
        status = read_json(self._run.status)
        if status and status.get("attempt", 0) >= self._controller_attempt:
            self._watchdog.see(status, now)
            self._screen.show(status)
        verdict = self._watchdog.verdict(now)
        if verdict and self._outcome is None and CONTROLLER in self._children:
            self._give_stacks()
            raise SiteError(verdict, f"every process wrote its stacks to {self._run.logs(self._attempt)}")

    def _give_stacks(self) -> None:
        for child in self._children.values():
            child.signal(signal.SIGUSR1)
        time.sleep(DUMP_S)

    # --- starting ----------------------------------------------------------------------------

    def _begin_attempt(self) -> None:
        self._attempt = self._controller_attempt = self._run.begin_attempt()
        make_keys(self._run.keys(self._attempt))
        self._watchdog.reset(time.monotonic())
        self._note(f"attempt {self._attempt} begins, {self._origin()}")
        ready, write = os.pipe()
        try:
            self._start(self._plan.controller, "--ready-fd", str(write), pass_fds=(write,))
        finally:
            os.close(write)
        self._selector.register(ready, selectors.EVENT_READ, partial(self._controller_ready, ready))

    def _controller_ready(self, ready: int) -> None:
        """The controller's first line is its address; an early end is told by its pidfd."""
        self._address = os.read(ready, 4096).decode().strip()
        self._selector.unregister(ready)
        os.close(ready)
        if not self._address or CONTROLLER not in self._children:
            return
        try:
            self._link = self._connect()
        except RollartError:
            if self._children[CONTROLLER].has_ended():
                return
            raise
        self._selector.register(self._link, selectors.EVENT_READ, partial(self._hear, self._link))
        for proc in self._plan.workers:
            self._start(proc)

    def _connect(self) -> Link:
        controller = self._children[CONTROLLER]
        hello = Hello(
            role="supervisor", name="supervisor", node=controller.proc.node, pool="", capacity=0, package=__version__,
            attempt=self._controller_attempt, incarnation=new_incarnation(), pid=os.getpid(),
        )  # fmt: skip
        keys = load_client(self._run.keys(self._controller_attempt))
        return Link(self._address, keys, hello, welcome_timeout_s=WELCOME_S)

    def _start(self, proc: Proc, *extra: str, pass_fds: tuple[int, ...] = ()) -> None:
        """Workers that start later in an attempt carry the newest attempt number."""
        incarnation = new_incarnation()
        newest = self._run.newest_checkpoint() if proc.role in ("controller", "trainer") else None
        address = "" if proc.role == "controller" else self._address
        command = role_command(proc, self._run, self._attempt, incarnation, address, newest.path if newest else None)
        child = start_child(
            proc,
            [*command, *extra],
            role_environment(proc, self._config),
            incarnation=incarnation,
            attempt=self._attempt,
            log=self._run.log(self._attempt, proc.name),
            pass_fds=pass_fds,
        )
        self._children[proc.name] = child
        self._selector.register(child, selectors.EVENT_READ, partial(self._ended, child))
        self._write()

    # --- endings -----------------------------------------------------------------------------

    def _ended(self, child: Child) -> None:
        if self._children.get(child.name) is not child:
            return  # ended by us in this very turn
        code = self._forget(child).reap()
        self._write()
        self._note(f"{child.name} ended: {describe(code)}")
        if child.name == CONTROLLER:
            self._controller_ended(child, code)
        else:
            self._tell(Exited(child.name, child.incarnation, code))
            self._worker_ended(child, code)

    def _controller_ended(self, child: Child, code: int) -> None:
        if code == 0:
            self._outcome = "finished"
        elif code == EXIT_DRAINED or self._draining:
            self._outcome = "drained"
        elif code in (EXIT_USER, EXIT_ENVIRONMENT):
            raise self._failure(child, code)
        else:
            delay_s = self._next_restore(child, code)
            self._end_all()
            self._after(delay_s, self._begin_attempt)

    def _worker_ended(self, child: Child, code: int) -> None:
        if code == 0 or self._draining:
            return  # it was told to
        role = child.proc.role
        if code == EXIT_USER or (code == EXIT_ENVIRONMENT and role == "trainer"):
            raise self._failure(child, code)
        if role == "trainer":
            self._restore_trainer(child, code)
        else:
            self._start_again(child, code)

    def _start_again(self, child: Child, code: int) -> None:
        delay_s = self._roles.next_delay_s(child.name, time.monotonic() - child.started_s)
        if delay_s is not None:
            self._after(delay_s, partial(self._start, child.proc))
        elif child.proc.role == "relay" or not self._others(child.proc):
            raise self._gave_up(child, code, f"restarts.per_role = {self._config.restarts.per_role}")
        else:
            self._note(
                f"{child.name} is not started again: it has used up restarts.per_role; the run goes on without it"
            )

    def _restore_trainer(self, child: Child, code: int) -> None:
        delay_s = self._next_restore(child, code)
        ranks = [c for c in self._children.values() if c.proc.role == "trainer"]
        for rank in ranks:
            self._forget(rank)
        for name, rank_code in end_children(ranks).items():
            incarnation = next(rank.incarnation for rank in ranks if rank.name == name)
            self._tell(Exited(name, incarnation, rank_code))
        self._after(delay_s, self._begin_trainer_attempt)

    def _begin_trainer_attempt(self) -> None:
        self._attempt = self._run.begin_attempt(under=self._controller_attempt)
        self._watchdog.touch(time.monotonic())
        self._note(f"attempt {self._attempt} of the trainer begins, {self._origin()}")
        for proc in self._plan.of("trainer"):
            self._start(proc)

    def _next_restore(self, child: Child, code: int) -> float:
        newest = self._run.newest_checkpoint()
        delay_s = self._restores.next_delay_s(newest.step if newest else -1)
        if delay_s is None:
            raise self._gave_up(child, code, f"restarts.attempts = {self._config.restarts.attempts}")
        return delay_s

    def _others(self, proc: Proc) -> bool:
        return any(c.proc.role == proc.role for c in self._children.values())

    def _forget(self, child: Child) -> Child:
        del self._children[child.name]
        self._selector.unregister(child)
        return child

    def _end_all(self, grace_s: float = 0.0) -> None:
        """End every process and whatever was to be started later."""
        self._timers.clear()
        children = [self._forget(child) for child in list(self._children.values())]
        if self._link is not None:
            self._selector.unregister(self._link)
            self._link.close("the run ends")
            self._link = None
        for key in [k for k in self._selector.get_map().values() if isinstance(k.fileobj, int)]:
            self._selector.unregister(key.fileobj)  # the pipe of a controller that never got ready
            os.close(key.fd)
        end_children(children, grace_s, TERM_S if grace_s else 0.0)

    # --- the user and the controller -----------------------------------------------------------

    def _interrupted(self) -> None:
        for number in self._signals.take():
            name = signal.Signals(number).name
            if self._draining or self._link is None or CONTROLLER not in self._children:
                self._note(f"{name}: ending every process now")
                self._outcome = "drained"
                return
            self._draining = True
            self._note(f"{name}: saving a checkpoint and ending the run (once more: end it now)")
            self._tell(Drain("cancelled"))
            self._after(self._drain_s, self._drain_took_too_long)

    def _drain_took_too_long(self) -> None:
        self._note(f"no checkpoint within {self._drain_s:g} s: ending every process now")
        self._outcome = "drained"

    def _hear(self, link: Link) -> None:
        """The controller has nothing to ask of the supervisor; a broken link is told by its pidfd."""
        try:
            while link.recv(0) is not None:
                pass
        except LinkClosed as error:
            self._note(str(error))
            self._selector.unregister(link)
            link.close("closed")
            self._link = None

    def _tell(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(message)

    def _note(self, text: str) -> None:
        with suppress(RollartError):  # the disk may be full; the screen is not
            line = f"{time.strftime('%H:%M:%S')}.{int(time.time() % 1 * 1000):03d} INFO supervisor: {text}"
            append_line(self._run.log(self._attempt, "supervisor"), line)
        self._screen.say(text)

    def _write(self) -> None:
        ownership.write_ownership(self._run, self._attempt, self._children.values())

    def _origin(self) -> str:
        newest = self._run.newest_checkpoint()
        return f"from the checkpoint of step {newest.step}" if newest else "from the base model"

    # --- failures ------------------------------------------------------------------------------

    def _failure(self, child: Child, code: int) -> RollartError:
        """The process knew why it ended: say that."""
        said = logs.last_error(child.log) or logs.quoted_tail(child.log)
        kind = UserError if code == EXIT_USER else SiteError
        return kind(f"{child.name}: {said}", f"its log: {child.log}")

    def _gave_up(self, child: Child, code: int, limit: str) -> SiteError:
        return SiteError(
            f"{child.name} keeps ending ({describe(code)}) and has used up {limit}; {logs.quoted_tail(child.log)}",
            f"find the cause, then: rollart-hpc resume {self._run.path}",
        )


def describe(code: int) -> str:
    """An exit code in words; negative codes are signals."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
