"""The process from which environment processes are forked: it imports the tasks' modules once.

Owns the children: forks and kills them on request, reports how they ended, and ends all of them when the worker is
gone. `processes` starts it as `python -m rollart_hpc.envs.forkserver FD PARENT_PID REFERENCE...` with few variables,
cwd `/`, a pipe for its output and one inherited descriptor, a SEQPACKET socket to the worker.

Only this process reaps its children, so it never signals a reused pid. Each child leads its own session: processes
that an environment has started are killed with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from typing import Union

import msgspec

from rollart_hpc.config.objects import resolve
from rollart_hpc.envs.child import serve
from rollart_hpc.errors import UserError

CLOSE_GRACE_S = 2.0  # for `Environment.close` when the worker is gone
CHILD_FD = 3
_PR_SET_PDEATHSIG = 1

log = logging.getLogger(__name__)


class Spawn(msgspec.Struct, tag=True):
    """worker -> fork server, with the child's end of its channel and the pipe for its output attached."""

    number: int


class Kill(msgspec.Struct, tag=True):
    number: int


class Ready(msgspec.Struct, tag=True):
    """fork server -> worker: all modules are imported."""


class Spawned(msgspec.Struct, tag=True):
    number: int
    pid: int


class Gone(msgspec.Struct, tag=True):
    """fork server -> worker. `code` as in subprocess: negative for a signal."""

    number: int
    code: int


read_order: msgspec.msgpack.Decoder[Spawn | Kill] = msgspec.msgpack.Decoder(Union[Spawn, Kill])
read_report: msgspec.msgpack.Decoder[Ready | Spawned | Gone] = msgspec.msgpack.Decoder(Union[Ready, Spawned, Gone])
write = msgspec.msgpack.encode


def die_with_parent(signal_number: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)


class ForkServer:
    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control = control
        self._parent = parent
        self._children: dict[int, int] = {}  # number -> pid
        self._unsent: deque[bytes] = deque()  # reports that the worker has no room for yet
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # only the wake-up descriptor is used
        signal.set_wakeup_fd(self._wake_in.fileno(), warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._selector.register(self._wake_out, selectors.EVENT_READ)

    def run(self) -> None:
        self._report(Ready())
        while os.getppid() == self._parent:
            for key, events in self._selector.select():
                if key.fileobj is self._wake_out:
                    self._drain_wakeups()
                    continue
                if events & selectors.EVENT_WRITE:
                    self._flush()
                if events & selectors.EVENT_READ and not self._obey():
                    return
            self._reap()

    def end(self) -> None:
        """The worker has closed all channels. Children close their environments; slow ones are killed."""
        deadline_s = time.monotonic() + CLOSE_GRACE_S
        while self._children and (left_s := deadline_s - time.monotonic()) > 0:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._control)
            self._selector.select(left_s)
            self._drain_wakeups()
            self._reap()
        for pid in self._children.values():
            _kill_session(pid)

    def _obey(self) -> bool:
        """False: the worker is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 4096, 2)
        except ConnectionError:
            return False
        if not data:
            return False
        order = read_order.decode(data)
        if isinstance(order, Spawn):
            self._spawn(order.number, *descriptors)
        elif order.number in self._children:
            _kill_session(self._children[order.number])
        return True

    def _spawn(self, number: int, channel: int, output: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_child(channel, output)
        os.close(channel)
        os.close(output)
        self._children[number] = pid
        self._report(Spawned(number, pid))

    def _become_child(self, channel: int, output: int) -> None:
        code = 1
        try:
            server = os.getppid()
            die_with_parent(signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # Slurm sends SIGTERM to all processes of a job. Trajectories must not fail while a checkpoint is saved, so
            # our handler, which does nothing, stays. An ignored signal would pass to what an environment starts.
            self._selector.close()
            for held in (self._control, self._wake_in, self._wake_out):
                held.detach()  # closed by number below; the objects must not close a reused descriptor later
            _keep_only(channel, output)
            gc.unfreeze()
            serve(socket.socket(fileno=CHILD_FD))
            code = 0
        except BaseException:
            log.exception("an environment process failed")
        finally:
            os._exit(code)  # never return to the server's code

    def _reap(self) -> None:
        numbers = {pid: number for number, pid in self._children.items()}
        while numbers:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            _kill_session(pid)  # not reaped yet, so its pid has not been reused
            _, status = os.waitpid(pid, 0)
            number = numbers.pop(pid, None)
            if number is not None:
                del self._children[number]
                self._report(Gone(number, os.waitstatus_to_exitcode(status)))

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_out.recv(4096):
                pass

    def _report(self, report: Ready | Spawned | Gone) -> None:
        """Never blocks: the worker may be waiting for us to read an order, and then reads no report."""
        self._unsent.append(write(report))
        if len(self._unsent) == 1:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._control.send(self._unsent[0], socket.MSG_DONTWAIT)
                self._unsent.popleft()
        except BlockingIOError:
            pass
        except ConnectionError:
            self._unsent.clear()
        waits = selectors.EVENT_WRITE if self._unsent else 0
        with contextlib.suppress(KeyError):  # at the end nobody listens
            self._selector.modify(self._control, selectors.EVENT_READ | waits)


def _keep_only(channel: int, output: int) -> None:
    """Close all but the standard streams, which write to `output`, and the channel, which moves to CHILD_FD."""
    for stream in (1, 2):
        os.dup2(output, stream)
    if channel != CHILD_FD:
        os.dup2(channel, CHILD_FD)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > CHILD_FD:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _kill_session(pid: int) -> None:
    """Kill the child's whole session, or only the child if it does not lead a session yet."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


def preload(references: list[str]) -> None:
    for reference in references:
        try:
            resolve(reference)
        except UserError as error:
            log.warning("%s", error)  # its resets will fail with the same message
    gc.collect()
    gc.freeze()  # otherwise a child's garbage collector touches, and so copies, every page


def main() -> None:
    descriptor, parent, *references = sys.argv[1:]
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    die_with_parent(signal.SIGTERM)
    server = ForkServer(socket.socket(fileno=int(descriptor)), int(parent))
    preload(references)
    server.run()
    server.end()


if __name__ == "__main__":
    main()
