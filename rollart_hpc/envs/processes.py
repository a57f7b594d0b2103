"""Environments in their own processes (`isolation: process`), as the worker sees them.

Owns the fork server, a channel per child and which variables they get. Event-driven: descriptors are registered in the
worker's selector with a callback as data. Nothing a child sends is trusted: a message that does not parse ends the
child.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from rollart_hpc.envs import forkserver, talk
from rollart_hpc.envs.handle import EnvHandle, Listener
from rollart_hpc.envs.output import Output
from rollart_hpc.errors import SiteError

log = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
CONTROL_TIMEOUT_S = 10.0
READ_BYTES = 1 << 16
SERVER_OUTPUT = "environments"  # what modules print while they are imported

# Variables that environments get. Others may hold tokens of hubs and clouds, or describe the run.
KEPT = {
    "PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "PYTHONHOME", "VIRTUAL_ENV",
    "CONDA_PREFIX", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR",
}  # fmt: skip
KEPT_PREFIXES = ("LC_", "OMP_", "MKL_")


class EnvProcess:
    """The worker's end of one environment process."""

    def __init__(self, processes: Processes, number: int, task: str, channel: socket.socket) -> None:
        self._processes = processes
        self.number = number
        self.task = task
        self.channel = channel
        self.pid = 0
        self.unpacker = talk.Unpacker()
        self.unsent = b""

    def ask(self, request: talk.Request) -> None:
        self._processes.send(self, talk.pack(request))


class Processes:
    def __init__(
        self,
        selector: selectors.BaseSelector,
        listener: Listener,
        setups: Mapping[str, talk.Setup],
        limit: int,
        variables: Sequence[str] = (),
    ) -> None:
        """At most `limit` children, idle ones included. `variables`: names of those they get besides the usual."""
        self._selector = selector
        self._listener = listener
        self._setups = setups
        self._limit = limit
        self._variables = variables
        self._output: Output | None = None
        self._children: dict[int, EnvProcess] = {}
        self._idle: defaultdict[str, list[EnvProcess]] = defaultdict(list)
        self._next_number = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    # --- handles --------------------------------------------------------------------------------

    def take(self, task: str) -> EnvHandle:
        if self._idle[task]:
            return self._idle[task].pop()
        if len(self._children) >= self._limit:
            self._remove_an_idle_one()
        return self._spawn(task)

    def give_back(self, handle: EnvHandle) -> None:
        assert isinstance(handle, EnvProcess)
        if handle.number in self._children:
            self._idle[handle.task].append(handle)

    def remove(self, handle: EnvHandle) -> None:
        assert isinstance(handle, EnvProcess)
        if self._forget(handle):
            self._order(forkserver.Kill(handle.number))

    @property
    def pids(self) -> list[int]:
        """Pids of the living children; the fork server's is last."""
        server = [self._server.pid] if self._server is not None else []
        return [child.pid for child in self._children.values() if child.pid] + server

    def close(self) -> None:
        """Children close their environments. The fork server kills those that take too long, then exits."""
        for child in list(self._children.values()):
            self._forget(child)
        server = self._server
        self._drop_server()
        if server is not None:
            try:
                server.wait(forkserver.CLOSE_GRACE_S + 5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        if self._output is not None:
            self._output.close()
            self._output = None

    # --- children ------------------------------------------------------------------------------

    def _spawn(self, task: str) -> EnvProcess:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._next_number += 1
        child = EnvProcess(self, self._next_number, task, ours)
        self._children[child.number] = child
        self._selector.register(ours, selectors.EVENT_READ, partial(self._ready, child))
        self.send(child, talk.pack(self._setups[task]))
        with theirs:
            self._order(forkserver.Spawn(child.number), theirs.fileno(), self._writer(task))
        return child

    def send(self, child: EnvProcess, data: bytes) -> None:
        """Never blocks: what the channel can't take now is sent when it is ready again."""
        child.unsent += data
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while child.unsent:
                child.unsent = child.unsent[child.channel.send(child.unsent) :]
        if child.unsent:
            self._watch(child, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _watch(self, child: EnvProcess, events: int) -> None:
        with contextlib.suppress(KeyError):  # not watched anymore: end of file was already read
            self._selector.modify(child.channel, events, partial(self._ready, child))

    def _ready(self, child: EnvProcess) -> None:
        if child.number not in self._children:
            return  # removed by another event in the same round
        if child.unsent:
            self._watch(child, selectors.EVENT_READ)
            self.send(child, b"")
        self._read(child)

    def _read(self, child: EnvProcess) -> None:
        try:
            data = child.channel.recv(READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            # The child died or closed the channel. Either way the fork server reports its exit code.
            self._selector.unregister(child.channel)
            self._order(forkserver.Kill(child.number))
            return
        try:
            for body in child.unpacker.feed(data):
                self._listener.answered(child, talk.read_answer(body))
        except talk.Garbage as error:
            self.remove(child)
            self._listener.died(child, str(error))

    def _forget(self, child: EnvProcess) -> bool:
        if self._children.pop(child.number, None) is None:
            return False
        if child in self._idle[child.task]:
            self._idle[child.task].remove(child)
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.channel)
        child.channel.close()
        return True

    def _remove_an_idle_one(self) -> None:
        for idle in self._idle.values():
            if idle:
                self.remove(idle[0])
                return

    # --- fork server -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the fork server and wait until it has imported the tasks' modules."""
        self._start_server()
        assert self._control is not None
        self._control.settimeout(START_TIMEOUT_S)
        try:
            if not self._control.recv(4096):
                raise SiteError("the environments' fork server died while importing the tasks", "see the log above")
        except TimeoutError:
            fix = "the import of a task's module hangs or is too slow: see the log above"
            raise SiteError(f"the environments' fork server is not ready after {START_TIMEOUT_S:g} s", fix) from None
        self._control.settimeout(CONTROL_TIMEOUT_S)

    def _writer(self, name: str) -> int:
        if self._output is None:
            self._output = Output([SERVER_OUTPUT, *self._setups])
        return self._output.writer(name)

    def _start_server(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        references = sorted({setup.environment for setup in self._setups.values()})
        command = [sys.executable, "-P", "-m", "rollart_hpc.envs.forkserver", str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._server = subprocess.Popen(
                [*command, *references],
                env=few_variables(os.environ, self._variables),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=self._writer(SERVER_OUTPUT),
                stderr=self._writer(SERVER_OUTPUT),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C must reach only the supervisor, not every environment
            )
        ours.settimeout(CONTROL_TIMEOUT_S)
        self._control = ours
        self._selector.register(ours, selectors.EVENT_READ, self._reported)

    def _order(self, order: forkserver.Spawn | forkserver.Kill, *descriptors: int) -> None:
        if self._control is None:
            if isinstance(order, forkserver.Kill):
                return  # the server is dead, and so are its children
            self._start_server()
        assert self._control is not None
        try:
            socket.send_fds(self._control, [forkserver.write(order)], descriptors)
        except OSError as error:  # including TimeoutError: a server that does not read is useless
            log.warning("restarting the environments' fork server, which does not respond: %s", error)
            assert self._server is not None
            self._server.kill()  # `_reported` then reads end of file from the control socket

    def _reported(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._server_died()
            return
        report = forkserver.read_report.decode(data)
        if isinstance(report, forkserver.Spawned) and report.number in self._children:
            self._children[report.number].pid = report.pid
        elif isinstance(report, forkserver.Gone) and report.number in self._children:
            self._gone(self._children[report.number], describe(report.code))

    def _gone(self, child: EnvProcess, detail: str) -> None:
        while child.number in self._children and self._is_watched(child):
            self._read(child)  # an answer sent before it died still counts
        if self._forget(child):
            self._listener.died(child, detail)

    def _is_watched(self, child: EnvProcess) -> bool:
        """False once end of file was read."""
        try:
            return self._selector.get_key(child.channel) is not None
        except KeyError:
            return False

    def _server_died(self) -> None:
        """Its children died with it. The next environment starts a new server."""
        log.warning("the environments' fork server died; the next environment starts a new one")
        server = self._server
        self._drop_server()
        if server is not None:
            server.wait()
        for child in list(self._children.values()):
            self._gone(child, "its fork server died")

    def _drop_server(self) -> None:
        if self._control is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._control)
            self._control.close()
        self._control = self._server = None


def few_variables(ours: Mapping[str, str], named: Sequence[str]) -> dict[str, str]:
    """The variables of environments. One thread per library, because a fork keeps no other threads, and no GPU."""
    kept = {name: value for name, value in ours.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}
    search = [os.path.abspath(entry or os.getcwd()) for entry in sys.path]
    fixed = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    fixed |= {"PYTHONPATH": os.pathsep.join(search), "CUDA_VISIBLE_DEVICES": ""}
    return kept | fixed | {name: ours[name] for name in named if name in ours}


def describe(code: int) -> str:
    return f"its process was killed by signal {-code}" if code < 0 else f"its process exited with code {code}"
