"""The agent of a node: starts, watches and ends the processes of a run there, on the supervisor's word.

    python -m rollart_hpc.launch.agents.agent --run-dir DIR --job ID --preload KIND...

One per node and job. It offers the node to the supervisor, over a link of its own (CURVE), and then does what it is
told. It forks the roles that use torch from one process that has imported it, gives each process its GPUs, CPUs and
caches, and reports how each of them ended. It decides nothing: restarts, attempts and placement are the supervisor's.

SIGTERM (Slurm is about to end the job)    is reported; the processes are still needed for a checkpoint
SIGTERM, SIGINT at a guest (`join`)        every process ends, then the agent
the supervisor is gone, or says so         every process ends, then the agent; one that may wait for the next does
the agent is killed                        the kernel ends every process
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.errors import RollartError
from rollart_hpc.launch.agents import resources
from rollart_hpc.launch.agents.dial import Dialer
from rollart_hpc.launch.agents.keeper import Keeper
from rollart_hpc.launch.place import LocalPlace
from rollart_hpc.launch.preloaded import Preloaded, preloaded_roles
from rollart_hpc.processes.lifetime import raise_file_limit
from rollart_hpc.processes.logs import LOG_FORMAT, LOG_TIME_FORMAT
from rollart_hpc.rundir import RunDir, open_run_dir
from rollart_hpc.vocabulary import ExitCode
from rollart_hpc.wire.link import LinkClosed
from rollart_hpc.wire.messages import Offer

FOREIGN = ("SLURM_", "PMI_", "PMIX_", "PMI2_")  # of the agent's step: wrong for the processes it starts
KEPT = ("SLURM_CONF", "SLURM_JOB_ID")

log = logging.getLogger("agent")


def agent_name(offer: Offer) -> str:
    """Of a guest also the name of its node; one machine may be offered twice."""
    if offer.is_guest:
        return f"guest-{offer.host}-{os.getpid()}"
    return f"agent-{offer.host}-{offer.job or os.getpid()}"


def forget_the_step() -> None:
    """The variables of the agent's own step must not reach its processes: MPI and others would believe them."""
    for name in [name for name in os.environ if name.startswith(FOREIGN) and name not in KEPT]:
        del os.environ[name]


def serve(
    run: RunDir, offer: Offer, kinds: tuple[str, ...], wait_s: float, make_cores: Callable[[], resources.Cores]
) -> None:
    """Offer this node until the run is over, or its supervisor gone and no other comes within `wait_s`."""
    roles = preloaded_roles(read_resolved(run.config)) if kinds else frozenset()
    name = agent_name(offer)
    caches = Path(tempfile.mkdtemp(prefix="rollart-cache-"))
    preloaded = Preloaded(run.job_log(f"{name}-preloaded"), kinds) if roles else None
    dialer = Dialer(run, name, offer.host, wait_s)
    try:
        while (link := dialer.dial()) is not None:
            try:
                goes_on = Keeper(
                    run, link, offer, LocalPlace(preloaded, roles), caches, make_cores(), dialer.is_outdated
                ).run()
            except LinkClosed as error:
                if not wait_s:
                    raise
                log.warning("%s: ended every process of this node", error.what)
                continue
            finally:
                link.close("the agent ends")
            dialer.ended()
            if not (goes_on and wait_s):
                return
            log.info("waiting %g s for the next supervisor", wait_s)
    finally:
        if preloaded is not None:
            preloaded.close()
        shutil.rmtree(caches, ignore_errors=True)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rollart_hpc.launch.agents.agent", allow_abbrev=False)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--job", default=os.environ.get("SLURM_JOB_ID", ""), help="id of the job that it runs in")
    parser.add_argument("--hardware", default="", help="class of the site")
    parser.add_argument("--nodes", default="", help="nodes of the plan that the tasks of this step stand for, in order")
    parser.add_argument("--wait-s", type=float, default=0.0, help="how long to wait for the next supervisor")
    parser.add_argument("--preload", nargs="*", default=[], metavar="KIND", help="what to import for roles to fork")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    args = _parse(arguments)
    nodes = args.nodes.split(",")[int(os.environ["SLURM_PROCID"]) :][:1] if args.nodes else []
    offer = make_offer(args.job, args.hardware, nodes)
    return offer_node(open_run_dir(args.run_dir), offer, tuple(args.preload), args.wait_s)


def make_offer(job: str, hardware: str, nodes: list[str]) -> Offer:
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    cpus, memory_gb = len(os.sched_getaffinity(0)), round(resources.memory_gb(), 1)
    return Offer(host, nodes, job, hardware, "", resources.visible_gpus(os.environ), cpus, memory_gb)


def make_guest(pool: str) -> Offer:
    """What `rollart-hpc join` offers: this machine, or the allocation's share of it. `pool`: empty = any."""
    offer = make_offer(os.environ.get("SLURM_JOB_ID", ""), "", [])
    return msgspec.structs.replace(
        offer,
        pool=pool,
        gpus=resources.gpus_of_machine(os.environ),
        cpus=resources.cpus_of_machine(os.environ),
        memory_gb=round(resources.memory_of_machine(os.environ), 1),
        is_guest=True,
    )


def offer_node(run: RunDir, offer: Offer, kinds: tuple[str, ...], wait_s: float) -> int:
    """Be the agent of this machine. Returns an exit code."""
    os.umask(0o077)  # files of a run are private to its user
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.OK))  # while it waits for a supervisor
    form = LOG_FORMAT.format(name=agent_name(offer))
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=form, datefmt=LOG_TIME_FORMAT)
    raise_file_limit()
    make_cores = partial(resources.own_cores, dict(os.environ))
    forget_the_step()
    try:
        serve(run, offer, kinds, wait_s, make_cores)
    except LinkClosed as error:
        log.error("%s: ended every process of this node", error.what)
        return ExitCode.LINK_LOST
    except RollartError as error:
        log.error("%s", error)
        return error.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
