"""The process from which roles with torch are forked: it imports the slow modules once.

Started by `launch.preloaded` as `python -m rollart_hpc.roles.preloaded FD KIND...`; FD is a SEQPACKET socket,
KINDs say what to import (`roles.imports`). Owns no role: the supervisor says what a child runs, and watches it.
A child leads its own session and ends with this process. It is reaped only when the supervisor asks for its exit
code, so its pid is not reused before.

When the supervisor or agent that started it is killed, it ends its children and frees the weights that relays among
them kept in shared memory: nobody else on this node would.

Must not start a thread, run a kernel or touch a GPU: a forked child could not use them.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from rollart_hpc.processes.forking import MAX_ORDER_BYTES, Fork, Forked, Reaped, read_order, write
from rollart_hpc.processes.lifetime import PARENT_VARIABLE, end_with_parent
from rollart_hpc.roles.imports import load
from rollart_hpc.rundir import RunDir

RELAY = "rollart_hpc.roles.relay"


def serve(control: socket.socket) -> None:
    """Returns in the parent when the supervisor is gone, and in a child when its work is done."""
    children: set[int] = set()
    relays: dict[str, Fork] = {}  # by node: the last one
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MAX_ORDER_BYTES, 2)
        if not data:
            return _sweep(children, relays)
        order = read_order.decode(data)
        if isinstance(order, Fork):
            pid = _fork(control, descriptors)
            if pid == 0:
                return _become(order)
            children.add(pid)
            if order.module == RELAY:
                relays[_value(order, "--node")] = order
            control.send(write(Forked(pid)))
        else:
            _, status = os.waitpid(order.pid, 0)
            children.discard(order.pid)
            control.send(write(Reaped(os.waitstatus_to_exitcode(status))))


def _value(order: Fork, flag: str) -> str:
    return order.arguments[order.arguments.index(flag) + 1]


def _sweep(children: set[int], relays: dict[str, Fork]) -> None:
    """A relay of the next supervisor may have taken over the memory already; it is the owner then."""
    for pid in children:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for node, order in relays.items():
        RunDir(Path(_value(order, "--run-dir"))).remove_store_of(node, _value(order, "--incarnation"))


def _fork(control: socket.socket, descriptors: list[int]) -> int:
    """Returns twice, like fork; in the parent only after the child leads a session that can be killed."""
    parent = os.getpid()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.environ[PARENT_VARIABLE] = str(parent)
        end_with_parent()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # the role decides
        os.setsid()
        control.close()
        for target, descriptor in zip((1, 2), descriptors):
            os.dup2(descriptor, target)
    for descriptor in (*descriptors, write):
        os.close(descriptor)
    if pid:
        os.read(read, 1)  # the child has closed its end
    os.close(read)
    return pid


def _become(order: Fork) -> None:
    os.environ.update(order.variables)
    Path("/proc/self/comm").write_text(order.module.rpartition(".")[2])  # what `top` and `ps -o comm` show
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = [order.module, *order.arguments]
    runpy.run_module(order.module, run_name="__main__", alter_sys=True)


def main() -> None:
    end_with_parent(signal.SIGHUP)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends it to all processes of a job; children still work
    control = socket.socket(fileno=int(sys.argv[1]))
    load(*sys.argv[2:])
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        sys.exit("an import has initialized CUDA, so no process can be forked from this one")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # from now on the end of `control` tells that the parent is gone
    serve(control)


if __name__ == "__main__":
    main()
