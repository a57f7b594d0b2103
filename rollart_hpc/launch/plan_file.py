"""plan.json: the processes of a run and where they run. Owns that file and the creation of a run directory.

The plan is made when the run is created, and every later start uses it. So a new version of the package, or a new
default, does not change a run that waits in a queue. `resume RUN_DIR key=value` replaces it; after an edit of site.yaml
in the run directory, remove plan.json and resume the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from rollart_hpc.config.resolved import read_resolved, read_site, write_resolved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.files import disk_errors, write_atomic
from rollart_hpc.launch.plan import Plan, make_plan
from rollart_hpc.rundir import RunDir


def create_run(run: RunDir, config: RunConfig, site: SiteConfig, plan: Plan) -> None:
    """Make the directory of a new run with the files that later starts read."""
    run.create()
    write_resolved(run.config, config)
    write_resolved(run.site, site)
    _write(run, plan)


def read_plan(run: RunDir) -> Plan:
    """The stored plan; if there is none, a newly computed one. Writes nothing."""
    return _stored(run) or _make(run)


def settle_plan(run: RunDir) -> Plan:
    """Like `read_plan`, but stores a newly computed plan (of a run directory made by an earlier version)."""
    plan = _stored(run)
    if plan is None:
        plan = _make(run)
        _write(run, plan)
    return plan


@contextmanager
def replace_plan(run: RunDir, plan: Plan) -> Iterator[None]:
    """For a change of the files that the plan is made from: while this is open there is no plan."""
    with disk_errors(run.plan):
        run.plan.unlink(missing_ok=True)
    yield
    _write(run, plan)


def _make(run: RunDir) -> Plan:
    return make_plan(read_resolved(run.config), read_site(run.site) if run.site.exists() else None)


def _write(run: RunDir, plan: Plan) -> None:
    write_atomic(run.plan, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")


def _stored(run: RunDir) -> Plan | None:
    try:
        return msgspec.json.decode(run.plan.read_bytes(), type=Plan)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fix = "restore it from a backup, or remove it to recompute the plan from config.yaml and site.yaml"
        raise SiteError(f"{run.plan} is damaged: {error}", fix) from None
