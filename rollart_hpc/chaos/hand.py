"""The hand of chaos on one node: signals, cuts and damage there, on the word of the command. Decides nothing.

    python -m rollart_hpc.chaos.hand --run-dir DIR        a request per line of input, an answer per line of output

It touches only processes that work in the run directory, and the run's own shared memory. When its input ends, or a
signal asks it to end, it continues every process that it has stopped.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from rollart_hpc.chaos.acts import AGENT, Kind
from rollart_hpc.launch.signals import Signals
from rollart_hpc.launch.timers import Timers
from rollart_hpc.rundir import RunDir, open_run_dir

AGENT_MODULE = b"rollart_hpc.launch.agents.agent"
PIECE_S, FREE_S = 0.09, 0.01  # of a slow process: stopped, running
CUT_EVERY_S = 0.05
NEW_EVERY_S = 0.005  # a new version should be damaged before engines read it
BUCKET = "bucket_0.bin"  # the first of a version, see `weights.store`
_PIDFD_GETFD = 438  # the same number on every architecture


class Request(msgspec.Struct, frozen=True):
    number: int
    kind: Kind
    role: str
    pid: int = 0
    seconds: float = 0.0
    node: str = ""
    host: str = ""
    point: float = 0.0


class Answer(msgspec.Struct, frozen=True):
    number: int
    detail: str = ""
    error: str = ""


class CantDo(Exception):
    """With the reason, for the user."""


class Held:
    """A process of the run that is being stopped, slowed or cut."""

    def __init__(self, pid: int, run: RunDir) -> None:
        """Its id may have been reused: a process of the run writes its log into the run directory."""
        try:
            self.pidfd = os.pidfd_open(pid)
            output = os.readlink(f"/proc/{pid}/fd/1")
            is_ours = output.startswith(f"{run.attempts.resolve()}/") or pid in agents_of(run)
        except OSError as error:
            raise CantDo(f"process {pid} is gone ({error.strerror})") from None
        if not is_ours:
            os.close(self.pidfd)
            raise CantDo(f"process {pid} does not belong to this run")
        self.pid = pid
        self.until_s = 0.0

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def let_go(self) -> None:
        self.signal(signal.SIGCONT)
        os.close(self.pidfd)


class Hand:
    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._timers = Timers()
        self._held: list[Held] = []

    def serve(self) -> None:
        selector = selectors.DefaultSelector()
        rest = b""
        try:
            with Signals() as signals:
                selector.register(0, selectors.EVENT_READ)
                selector.register(signals, selectors.EVENT_READ)
                while True:
                    due_s = self._timers.next_s()
                    ready = selector.select(None if due_s is None else max(0.0, due_s - time.monotonic()))
                    self._timers.run_due()
                    if any(key.fd != 0 for key, _ in ready):
                        return
                    if ready:
                        data = os.read(0, 1 << 16)
                        if not data:
                            return
                        *lines, rest = (rest + data).split(b"\n")
                        for line in lines:
                            self._answer(line)
        finally:
            for held in self._held:
                held.let_go()

    def _answer(self, line: bytes) -> None:
        request = msgspec.json.decode(line, type=Request)
        try:
            answer = Answer(request.number, self.do(request))
        except CantDo as error:
            answer = Answer(request.number, error=str(error))
        os.write(1, msgspec.json.encode(answer) + b"\n")

    # --- acts ------------------------------------------------------------------------------------

    def do(self, request: Request) -> str:
        held = Held(request.pid or self._agent_on(request.host), self._run)
        detail = f"pid {held.pid}"
        if request.kind in (Kind.KILL, Kind.CORRUPT):
            held.signal(signal.SIGKILL)
            os.close(held.pidfd)
            if request.seconds:
                self._damage_until(
                    time.monotonic() + request.seconds, self._run.store_root / request.node, request.point
                )
                detail = f"weights of {request.node}, {detail}"
            return detail
        held.until_s = time.monotonic() + request.seconds
        if request.kind is Kind.CUT:
            detail = f"{self._cut_first(held)}, {detail}"
        else:
            held.signal(signal.SIGSTOP)
            first_s = PIECE_S if request.kind is Kind.SLOW else request.seconds
            self._timers.after(first_s, partial(self._free, held))
        self._held.append(held)
        return detail

    def _free(self, held: Held) -> None:
        """At the end of a stop, or of a piece of slowness."""
        if time.monotonic() >= held.until_s:
            self._end(held)
        else:
            held.signal(signal.SIGCONT)
            self._timers.after(FREE_S, partial(self._stop_again, held))

    def _stop_again(self, held: Held) -> None:
        held.signal(signal.SIGSTOP)
        self._timers.after(PIECE_S, partial(self._free, held))

    def _cut_first(self, held: Held) -> str:
        count = shut_connections(held)
        self._timers.after(CUT_EVERY_S, partial(self._cut_again, held))
        return f"{count} connections"

    def _cut_again(self, held: Held) -> None:
        if time.monotonic() >= held.until_s:
            self._end(held)
            return
        with suppress(CantDo):  # it has ended
            shut_connections(held)
        self._timers.after(CUT_EVERY_S, partial(self._cut_again, held))

    def _damage_until(self, until_s: float, store: Path, point: float, done: Collection[str] = ()) -> None:
        """Damage the newest weights of a node, and every version that comes, as soon as it is there."""
        newest = newest_version(store)
        if newest is not None and newest.name not in done:
            done = {*done, newest.name}
            with suppress(FileNotFoundError):  # pruned at this moment
                flip(newest / BUCKET, point)
        if time.monotonic() < until_s:
            self._timers.after(NEW_EVERY_S, partial(self._damage_until, until_s, store, point, done))

    def _end(self, held: Held) -> None:
        self._held.remove(held)
        held.let_go()

    def _agent_on(self, host: str) -> int:
        pid = next((pid for pid, known in agents_of(self._run).items() if known == host), None)
        if pid is None:
            raise CantDo(f"found no {AGENT} on {host}")
        return pid


def agents_of(run: RunDir) -> dict[int, str]:
    """The agents of the run that live here, with their hosts: a development cluster has several on one machine."""
    found = {}
    ours = {os.fsencode(run.path), b"--run-dir=" + os.fsencode(run.path)}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if AGENT_MODULE in words[:4] and ours & {*words}:  # not the srun of one
                variables = (process / "environ").read_bytes().split(b"\0")
                hosts = [word.split(b"=", 1)[1] for word in variables if word.startswith(b"SLURMD_NODENAME=")]
                found[int(process.name)] = os.fsdecode(hosts[0]) if hosts else socket.gethostname()
    return found


def shut_connections(held: Held) -> int:
    """Shut down every TCP connection of a process, as if the network had reset it. Returns how many there were."""
    count = 0
    for number in list(_sockets(held.pid)):
        duplicate = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, held.pidfd, number, 0)
        if duplicate < 0:
            problem = ctypes.get_errno()
            if problem in (1, 13, 38):  # EPERM, EACCES, ENOSYS
                raise CantDo(
                    f"the kernel does not let us reach the sockets of process {held.pid} ({os.strerror(problem)}): "
                    "kernel.yama.ptrace_scope must be 0"
                )
            continue  # it was closed in the meantime
        with socket.socket(fileno=duplicate) as connection, suppress(OSError):
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                connection.getpeername()  # fails for one that only listens
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _sockets(pid: int) -> Iterator[int]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError as error:
        raise CantDo(f"can't list the files of process {pid}: {error.strerror}") from None
    for name in names:
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                yield int(name)


def newest_version(store: Path) -> Path | None:
    """In the memory of a node."""
    return max((path.parent for path in store.glob(f"v*-*/{BUCKET}")), key=_version, default=None)


def _version(directory: Path) -> tuple[int, ...]:
    """Of a directory v<attempt>-<version>."""
    return tuple(int(number) for number in directory.name.removeprefix("v").split("-"))


def flip(path: Path, point: float) -> str:
    with path.open("r+b", buffering=0) as file:
        place = int(point * (path.stat().st_size - 1))
        byte = os.pread(file.fileno(), 1, place)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 0xFF]), place)
    return f"byte {place} of {'/'.join(path.parts[-2:])}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rollart_hpc.chaos.hand", allow_abbrev=False)
    parser.add_argument("--run-dir", required=True)
    run = open_run_dir(parser.parse_args(arguments).run_dir)
    Hand(run).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
