"""The agent of a node: starts, watches and ends the processes of a run there, on the supervisor's word.

    python -m rollart_hpc.launch.agents.agent --run-dir DIR --job ID --preload KIND...

One per node and job. It offers the node to the supervisor, over a link of its own (CURVE), and then does what it is
told. It forks the roles that use torch from one process that has imported it, gives each process its GPUs, CPUs and
caches, and reports how each of them ended. It decides nothing: restarts, attempts and placement are the supervisor's.

SIGTERM (Slurm is about to end the job)    is reported; the processes are still needed for a checkpoint
the supervisor is gone, or says so         every process ends, then the agent
the agent is killed                        the kernel ends every process
"""

from __future__ import annotations

import argparse
import logging
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rollart_hpc import __version__
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.errors import RollartError, SiteError
from rollart_hpc.launch.agents import resources
from rollart_hpc.launch.agents.server import read_address
from rollart_hpc.launch.command import python
from rollart_hpc.launch.place import LocalPlace
from rollart_hpc.launch.plan import Proc
from rollart_hpc.launch.preloaded import Preloaded, preloaded_roles
from rollart_hpc.launch.process import LocalChild, Order, new_incarnation
from rollart_hpc.launch.signals import Signals
from rollart_hpc.processes.lifetime import STAYS_VARIABLE, raise_file_limit
from rollart_hpc.processes.logs import LOG_FORMAT, LOG_TIME_FORMAT
from rollart_hpc.rundir import RunDir, open_run_dir
from rollart_hpc.vocabulary import ExitCode
from rollart_hpc.wire.keys import load_client
from rollart_hpc.wire.link import Link, LinkClosed, Received
from rollart_hpc.wire.messages import (
    Died,
    EndProcess,
    Hello,
    Launch,
    Launched,
    Offer,
    Signalled,
    Stop,
    Warned,
    WhoAreYou,
)

FOREIGN = ("SLURM_", "PMI_", "PMIX_", "PMI2_")  # of the agent's step: wrong for the processes it starts
KEPT = ("SLURM_CONF", "SLURM_JOB_ID")

log = logging.getLogger("agent")


class Agent:
    def __init__(self, link: Link, offer: Offer, place: LocalPlace, caches: Path) -> None:
        self._link, self._offer, self._place, self._caches = link, offer, place, caches
        self._selector = selectors.DefaultSelector()
        self._signals = Signals()
        self._cores = resources.own_cores()
        self._children: dict[tuple[str, str], LocalChild] = {}
        self._cpus: dict[tuple[str, str], set[int]] = {}
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._num_out_of_memory = resources.num_killed_for_memory()
        self._is_over = False

    def run(self) -> None:
        """Until the supervisor says so, or is gone. Leaves no process behind."""
        try:
            with self._signals:
                self._selector.register(self._signals, selectors.EVENT_READ, self._signalled)
                self._selector.register(self._link, selectors.EVENT_READ, self._hear)
                self._link.send(self._offer)
                while not self._is_over:
                    self._turn()
        finally:
            self._end_all()

    def _turn(self) -> None:
        now = time.monotonic()
        due_s = min((due_s for due_s, _ in self._timers), default=None)
        for key, _ in self._selector.select(None if due_s is None else max(0.0, due_s - now)):
            key.data()
        now = time.monotonic()
        due = [action for due_s, action in self._timers if due_s <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for action in due:
            action()

    # --- the supervisor's word -------------------------------------------------------------------

    def _hear(self) -> None:
        while (received := self._link.recv(0)) is not None:
            self._obey(received)

    def _obey(self, received: Received) -> None:
        message = received[0]
        if isinstance(message, Launch):
            self._launch(message)
        elif isinstance(message, Signalled):
            child = self._children.get((message.name, message.incarnation))
            if child is not None:
                child.signal(message.number)
        elif isinstance(message, EndProcess):
            self._end(message)
        elif isinstance(message, WhoAreYou):  # it has given up our processes
            self._end_all()
            self._link.send(self._offer)
        elif isinstance(message, Stop):
            self._is_over = True

    def _launch(self, launch: Launch) -> None:
        key = (launch.name, launch.incarnation)
        try:
            child = self._start(launch)
        except RollartError as error:
            log.error("%s", error)
            self._link.send(Died(*key, ExitCode.ENVIRONMENT, str(error)))
            return
        self._cpus[key] = self._cores.take(launch.cpus)
        resources.settle(child.pid, self._cpus[key])
        self._children[key] = child
        self._selector.register(child, selectors.EVENT_READ, partial(self._ended, key))
        self._link.send(Launched(*key, child.pid))

    def _start(self, launch: Launch) -> LocalChild:
        proc = Proc(launch.name, launch.role, self._offer.hardware, self._offer.host)  # type: ignore[arg-type]
        order = Order(proc, launch.attempt, Path(launch.log), launch.incarnation)
        variables = launch.variables | resources.cache_variables(self._caches)
        variables |= resources.gpu_variables(self._offer.gpus, launch.gpus) | {STAYS_VARIABLE: "1"}
        return self._place.start(order, python(*launch.arguments), variables)

    def _end(self, message: EndProcess) -> None:
        """Answered by Died. `grace_s` to end by itself, then SIGTERM and `term_s`, then SIGKILL."""
        child = self._children.get((message.name, message.incarnation))
        if child is None:
            return
        if message.term_s:
            self._after(message.grace_s, partial(child.signal, signal.SIGTERM))
        self._after(message.grace_s + message.term_s, partial(self._kill, (message.name, message.incarnation)))

    def _kill(self, key: tuple[str, str]) -> None:
        child = self._children.get(key)
        if child is not None:
            child.kill_group()

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        if delay_s > 0:
            self._timers.append((time.monotonic() + delay_s, action))
        else:
            action()

    # --- endings ---------------------------------------------------------------------------------

    def _ended(self, key: tuple[str, str]) -> None:
        child = self._children.pop(key)
        self._selector.unregister(child)
        self._cores.give_back(self._cpus.pop(key))
        code = child.reap()
        reason = self._why(code)
        log.info("%s ended with %s%s", key[0], code, f": {reason}" if reason else "")
        self._link.send(Died(*key, code, reason))

    def _why(self, code: int) -> str:
        before, self._num_out_of_memory = self._num_out_of_memory, resources.num_killed_for_memory()
        return "out of memory" if code == -signal.SIGKILL and self._num_out_of_memory > before else ""

    def _end_all(self) -> None:
        """At once: the supervisor has given them up, or has asked them to end before."""
        for child in self._children.values():
            self._selector.unregister(child)
        self._place.end(self._children.values())
        for cpus in self._cpus.values():
            self._cores.give_back(cpus)
        self._children.clear()
        self._cpus.clear()
        self._timers.clear()

    def _signalled(self) -> None:
        for number in self._signals.take():
            log.info("got %s: telling the supervisor", signal.Signals(number).name)
            self._link.send(Warned(self._offer.host))


# --- start ---------------------------------------------------------------------------------------


def connect(run: RunDir, name: str, host: str) -> Link:
    address, epoch = read_address(run)
    hello = Hello("agent", name, host, "", 0, __version__, epoch, new_incarnation(), os.getpid())
    return Link(address, load_client(run.agent_keys(epoch)), hello)


def agent_name(host: str, job: str) -> str:
    return f"agent-{host}-{job}" if job else f"agent-{host}-{os.getpid()}"


def forget_the_step() -> None:
    """The variables of the agent's own step must not reach its processes: MPI and others would believe them."""
    for name in [name for name in os.environ if name.startswith(FOREIGN) and name not in KEPT]:
        del os.environ[name]


def serve(run: RunDir, offer: Offer, kinds: tuple[str, ...]) -> None:
    """Offer this node until the run is over or its supervisor gone."""
    roles = preloaded_roles(read_resolved(run.config)) if kinds else frozenset()
    name = agent_name(offer.host, offer.job)
    caches = Path(tempfile.mkdtemp(prefix="rollart-cache-"))
    preloaded = Preloaded(run.job_log(f"{name}-preloaded"), kinds) if roles else None
    try:
        link = connect(run, name, offer.host)
        try:
            Agent(link, offer, LocalPlace(preloaded, roles), caches).run()
        finally:
            link.close("the agent ends")
    finally:
        if preloaded is not None:
            preloaded.close()
        shutil.rmtree(caches, ignore_errors=True)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rollart_hpc.launch.agents.agent", allow_abbrev=False)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--job", default="", help="id of the job that it runs in")
    parser.add_argument("--hardware", default="", help="class of the site")
    parser.add_argument("--preload", nargs="*", default=[], metavar="KIND", help="what to import for roles to fork")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    args = _parse(arguments)
    os.umask(0o077)  # files of a run are private to its user
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    form = LOG_FORMAT.format(name=agent_name(host, args.job))
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=form, datefmt=LOG_TIME_FORMAT)
    raise_file_limit()
    gpus = resources.visible_gpus(os.environ)
    forget_the_step()
    offer = Offer(
        host, [], args.job, args.hardware, "", gpus, len(os.sched_getaffinity(0)), round(resources.memory_gb(), 1)
    )
    try:
        serve(open_run_dir(args.run_dir), offer, tuple(args.preload))
    except LinkClosed as error:
        log.error("%s: ended every process of this node", error.what)
        return ExitCode.LINK_LOST
    except SiteError as error:
        log.error("%s", error)
        return error.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
