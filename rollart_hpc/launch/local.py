"""A run on this machine: prepares the run directory, then runs the plan as local processes.

Owns the order of preparation: problems are found before the first role starts.
"""

from __future__ import annotations

from contextlib import suppress

from rollart_hpc.backends.registry import find
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import RollartError, UserError
from rollart_hpc.extras import TRAIN, Need, need
from rollart_hpc.launch.base_model import prepare_model
from rollart_hpc.launch.leader import find_mpiexec
from rollart_hpc.launch.ownership import has_finished, supervisor_pid, write_ownership
from rollart_hpc.launch.place import LocalPlace
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.plan_file import create_run, settle_plan
from rollart_hpc.launch.preloaded import Preloaded, preloaded_kinds, preloaded_roles
from rollart_hpc.launch.screen import Screen
from rollart_hpc.launch.supervisor import Outcome, Supervisor
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState


def start_run(config: RunConfig, site: SiteConfig, run: RunDir, screen: Screen) -> Outcome:
    """Start a new run in a directory that does not exist yet."""
    _need_backends(config)
    create_run(run, config, site, make_plan(config, site))
    screen.say(f"run directory {run.path}")
    return _carry_out(run, config, screen)


def resume_run(run: RunDir, screen: Screen) -> Outcome:
    """Resume from the newest committed checkpoint, or from the base model if there is none."""
    config = read_resolved(run.config)
    pid = supervisor_pid(run)
    if pid is not None:
        raise UserError(f"{run.path} is still running (pid {pid})", f"end it first: rollart-hpc cancel {run.path}")
    if has_finished(run):
        raise UserError(f"{run.path} has finished all {config.steps} steps", "start a new run")
    _need_backends(config)
    return _carry_out(run, config, screen)


def _carry_out(run: RunDir, config: RunConfig, screen: Screen) -> Outcome:
    write_ownership(run, run.last_attempt(), ())  # from now on this process owns the run
    roles = preloaded_roles(config)
    preloaded = Preloaded(run.preloaded_log, preloaded_kinds(config)) if roles else None
    try:
        _prepare(run, config, screen, preloaded)
        return Supervisor(run, config, settle_plan(run), screen, LocalPlace(preloaded, roles)).supervise()
    finally:
        if preloaded is not None:
            preloaded.close()


def _prepare(run: RunDir, config: RunConfig, screen: Screen, preloaded: Preloaded | None) -> None:
    try:
        prepare_model(run, config, screen.say, preloaded)
    except RollartError as error:
        with suppress(RollartError):
            write_ownership(run, run.last_attempt(), (), RunState.FAILED, error.what)
        raise


def _need_backends(config: RunConfig) -> None:
    """Report all missing packages at once; otherwise roles would fail one by one."""
    backends = find("engine", config.engine.kind), find("trainer", config.trainer.kind)
    need(
        TRAIN,
        *(Need(backend.modules, backend.extra, backend.install) for backend in backends),
        *([Need(("peft",), "lora")] if config.trainer.lora.rank else []),
        *([Need(("mpi4py",), "mpi")] if config.weights.collective == "mpi" else []),
    )
    if config.weights.collective == "mpi":
        find_mpiexec()
