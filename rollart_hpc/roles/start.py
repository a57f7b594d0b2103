"""The start and end of every role: arguments, logging, stack dumps, link to the controller, exit codes.

    def main(start: Start) -> None:
        from rollart_hpc.engines... import ...      # heavy imports late
        link = connect(start, capacity=...)
        ...

    if __name__ == "__main__":
        run_role("engine", main)

Knows nothing of what a role does.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import math
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from rollart_hpc import __version__
from rollart_hpc.config.resolved import read_resolved, read_site
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import RollartError, SiteError, command_line
from rollart_hpc.files import FILE_MODE, read_json
from rollart_hpc.observe.trace import Tracer
from rollart_hpc.processes.about import about_process
from rollart_hpc.processes.lifetime import end_with_parent, seat_incarnation, stay_if_told, stay_offline
from rollart_hpc.processes.logs import LOG_FORMAT, LOG_TIME_FORMAT
from rollart_hpc.rundir import RunDir
from rollart_hpc.types import Role
from rollart_hpc.vocabulary import ExitCode
from rollart_hpc.wire.ports import PORTS_VARIABLE

if TYPE_CHECKING:
    from rollart_hpc.wire.link import Link


log = logging.getLogger("rollart_hpc.start")


@dataclass(frozen=True)
class Seat:
    """The process that a rank of an MPI world is."""

    name: str
    node: str
    host: str = ""  # host it runs on, set if the launcher numbers ranks in its own order


@dataclass(frozen=True)
class Start:
    """Everything a process knows when it starts."""

    role: Role
    run: RunDir
    config: RunConfig
    name: str
    address: str  # of the controller; "" = look it up (late joiner)
    attempt: int
    node: str
    pool: str
    rank: int
    ranks: int
    incarnation: str
    local_rank: int = 0  # trainer: number among the ranks of its node
    checkpoint: Path | None = None  # committed checkpoint to start from; None = base model
    idle_s: float = math.inf  # leave after this many seconds without work
    live_s: float = math.inf  # leave after this many seconds in any case
    ready_fd: int | None = None  # controller: where to write its address once it listens
    control: str = "lo"  # controller: interface or network it listens on; "" = the host's own
    ports: str = ""  # range of ports it may listen on, e.g. 40000-40100
    stays: bool = False  # SIGTERM does not end the process, but is reported to the supervisor
    data: str | None = None  # interface or network of the data plane; None = the one that reaches the controller
    seats: tuple[Seat, ...] = ()  # the processes of an MPI world, one per rank


def parse(role: Role, arguments: list[str] | None = None) -> Start:
    """Read the command line and the run directory; set up logging, stack dumps and the exit with the parent."""
    args = _parser(role).parse_args(arguments)
    _log_to_stderr(args.name)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    end_with_parent()
    stay_offline()
    stays = stay_if_told()
    run = RunDir(args.run_dir)
    ports = args.ports or _site_ports(run)
    os.environ[PORTS_VARIABLE] = ports
    return Start(
        role=role,
        run=run,
        config=read_resolved(run.config),
        name=args.name,
        address=args.address,
        attempt=args.attempt or run.last_attempt(),
        node=args.node,
        pool=args.pool,
        rank=args.rank,
        ranks=args.ranks,
        local_rank=args.local_rank,
        incarnation=args.incarnation or secrets.token_hex(8),
        checkpoint=args.checkpoint,
        idle_s=args.idle_s,
        live_s=args.live_s,
        ready_fd=args.ready_fd,
        control=args.control,
        ports=ports,
        data=args.data,
        stays=stays,
        seats=_seats(args.seats, args.hosts),
    )


def _site_ports(run: RunDir) -> str:
    return read_site(run.site).network.ports if run.site.exists() else ""


def _seats(seats: str, hosts: str) -> tuple[Seat, ...]:
    pairs = [seat.split("@") for seat in seats.split(",") if seat]
    where = hosts.split(",") if hosts else [""] * len(pairs)
    return tuple(Seat(name, node, host) for (name, node), host in zip(pairs, where, strict=True))


def seated(start: Start, rank: int) -> Start:
    """The Start of this rank of a world, from the list that all ranks get. Redirects output to the rank's own log."""
    host = os.environ.get("SLURMD_NODENAME", "")  # correct in every component of a job, unlike many variables
    index = next((i for i, seat in enumerate(start.seats) if seat.host and seat.host == host), rank)
    seat = start.seats[index]
    output = os.open(start.run.log(start.attempt, seat.name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.close(output)
    _log_to_stderr(seat.name)
    log.info("%s", about_process(seat.node))
    incarnation = seat_incarnation(start.incarnation, index)
    return replace(start, name=seat.name, node=seat.node, incarnation=incarnation)


def _parser(role: Role) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m rollart_hpc.roles.{role}", allow_abbrev=False)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--name", default=role, help="unique in the run")
    parser.add_argument("--attempt", type=int, default=0, help="0 = the newest attempt")
    parser.add_argument("--incarnation", default="", help="unique id of this start; default: random")
    parser.add_argument("--address", default="", help="tcp://HOST:PORT of the controller")
    parser.add_argument("--node", default=socket.gethostname())
    parser.add_argument("--pool", default="", help="pool of an engine")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--local-rank", type=int, default=0, help="number among the trainer ranks of its node")
    parser.add_argument("--checkpoint", type=Path, default=None)
    parser.add_argument("--idle-s", type=float, default=math.inf, help="leave after this many seconds without work")
    parser.add_argument("--live-s", type=float, default=math.inf, help="leave after this many seconds in any case")
    parser.add_argument("--ready-fd", type=int, default=None)
    parser.add_argument("--control", default="lo", help="interface or network the controller listens on")
    parser.add_argument("--ports", default="", help="ports it may listen on; empty = those of the site")
    parser.add_argument("--data", default=None, help="interface or network of the data plane")
    parser.add_argument("--hosts", default="", help="HOST,... of --seats; empty: ranks are in the order listed")
    parser.add_argument("--seats", default="", help="NAME@NODE,... of the ranks of an MPI world")
    return parser


def _log_to_stderr(name: str) -> None:
    form = LOG_FORMAT.format(name=name)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=form, datefmt=LOG_TIME_FORMAT, force=True)


def find_address(start: Start) -> str:
    """The controller's address: from the command line, else from the file for late joiners."""
    if start.address:
        return start.address
    content = read_json(start.run.controller(start.attempt))
    if not content:
        raise SiteError(
            f"attempt {start.attempt} of {start.run.path} has no controller address yet",
            f"check that it is running: {command_line('status', start.run.path)}",
        )
    return str(content["address"])


def data_address(start: Start) -> str:
    """The address of this process's data plane (weights, collectives)."""
    from rollart_hpc.wire.interfaces import address_facing, address_of

    if start.data is not None:
        return address_of(start.data)
    controller = urlsplit(find_address(start))
    return address_facing(controller.hostname or "", controller.port or 0)


def connect(
    start: Start,
    *,
    capacity: int = 0,
    version: int = -1,
    num_ranks: int = 1,
    kv_tokens: int = 0,
    speed: float = 1.0,
) -> Link:
    """Say Hello to the controller and wait for its Welcome."""
    from rollart_hpc.wire import keys
    from rollart_hpc.wire.link import Link
    from rollart_hpc.wire.messages import Hello, Warned

    message = Hello(
        role=start.role,
        name=start.name,
        node=start.node,
        pool=start.pool,
        capacity=capacity,
        package=__version__,
        attempt=start.attempt,
        incarnation=start.incarnation,
        pid=os.getpid(),
        version=version,
        num_ranks=num_ranks,
        kv_tokens=kv_tokens,
        speed=speed,
    )
    link = Link(find_address(start), keys.load_client(start.run.keys(start.attempt), start.role), message)
    if start.stays and threading.current_thread() is threading.main_thread():
        # Before preempting a job Slurm signals the steps but not the batch script, so we tell the supervisor.
        signal.signal(signal.SIGTERM, lambda *_: link.send(Warned(start.name)))
    return link


def open_trace(start: Start) -> Tracer:
    """The trace of this process, within the budget of the run."""
    return Tracer(start.run.trace_part(start.attempt, start.name), start.name, start.config.observe.trace_bytes)


def run_role(role: Role, main: Callable[[Start], int | None]) -> NoReturn:
    """Parse, run `main`, exit with a code. Known errors are one log line, not a traceback."""
    try:
        start = parse(role)
        log.info("%s", about_process(start.node))
        code = main(start) or ExitCode.OK
    except RollartError as error:
        log.error("%s", error)
        code = ExitCode.LINK_LOST if _is_link_closed(error) else error.exit_code
    except KeyboardInterrupt:
        log.info("interrupted")
        code = ExitCode.INTERRUPTED
    except Exception as error:
        log.exception("this process failed with %s", type(error).__name__)
        code = ExitCode.CRASHED
    logging.shutdown()
    sys.exit(code)


def _is_link_closed(error: RollartError) -> bool:
    from rollart_hpc.wire.link import LinkClosed

    return isinstance(error, LinkClosed)
