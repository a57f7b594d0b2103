"""The command line and environment of each process of the plan. Starts nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import rollart_hpc
from rollart_hpc.config.pools import engine_of
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.launch.plan import Proc
from rollart_hpc.launch.process import Order
from rollart_hpc.processes.lifetime import PARENT_VARIABLE
from rollart_hpc.processes.memory import huge_pages
from rollart_hpc.rundir import RunDir

_PACKAGE_PARENT = str(Path(rollart_hpc.__file__).resolve().parent.parent)


def role_command(order: Order, run: RunDir, *, address: str = "", checkpoint: Path | None = None) -> list[str]:
    """`address` is empty for the controller, and for workers that join later and read it from the run directory."""
    proc = order.proc
    command = python("-m", f"rollart_hpc.roles.{proc.role}", "--run-dir", str(run.path), "--name", proc.name)
    command += ["--attempt", str(order.attempt), "--incarnation", order.incarnation]
    if order.seats:
        command += ["--seats", ",".join(f"{seat.name}@{seat.node}" for seat in order.seats)]
    else:
        command += ["--node", proc.node]
    if proc.pool:
        command += ["--pool", proc.pool]
    if proc.role == "trainer":
        command += ["--rank", str(proc.rank), "--ranks", str(proc.ranks), "--local-rank", str(proc.local_rank)]
    if address:
        command += ["--address", address]
    if checkpoint is not None:
        command += ["--checkpoint", str(checkpoint)]
    return command


def python(*arguments: str) -> list[str]:
    """This interpreter, without the current directory on its path: the user's files must not shadow modules."""
    return [sys.executable, "-P", *arguments]


def variables(threads: int = 1) -> dict[str, str]:
    """Numeric libraries get few threads, because the processes of a run share the machine."""
    return {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}


def role_variables(proc: Proc, config: RunConfig) -> dict[str, str]:
    """What a process needs in its environment besides that of the place it runs in."""
    threads = {"trainer": config.trainer.threads, "engine": engine_of(config, proc.pool).threads}
    return variables(threads.get(proc.role, 1)) | (huge_pages() if proc.role == "controller" else {})


def environment(added: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that this one starts; `added`: by default those for one thread."""
    chosen = dict(os.environ) | (variables() if added is None else added)
    chosen.pop(PARENT_VARIABLE, None)
    if _PACKAGE_PARENT not in sys.path:  # a checkout that is not installed
        known = chosen.get("PYTHONPATH")
        chosen["PYTHONPATH"] = os.pathsep.join([_PACKAGE_PARENT, known] if known else [_PACKAGE_PARENT])
    return chosen
