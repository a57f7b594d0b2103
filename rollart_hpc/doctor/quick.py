"""Checks that need no job: commands, munge, partitions, scheduler, limits, disk."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rollart_hpc.config.site import SiteConfig
from rollart_hpc.doctor.scope import Scope
from rollart_hpc.errors import SiteError
from rollart_hpc.files import disk_errors
from rollart_hpc.launch.finding import Finding, fail, good, has_failed, note, warn
from rollart_hpc.launch.sites.compare import compare
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError, is_installed
from rollart_hpc.launch.slurm.inventory import read_inventory
from rollart_hpc.launch.slurm.limits import Limits

COMMANDS = ("sbatch", "srun", "salloc", "squeue", "sinfo", "scontrol", "scancel")
_LATE_S = 60  # warn if the scheduler may delay a heterogeneous job by more than this
_DEFAULT_INTERVAL_S = 30
_LITTLE_GB = 10.0
_CONF = "/etc/slurm/slurm.conf"
_QUOTA_TEST_BYTES = 4 * 1024 * 1024


def quick_findings(site: SiteConfig, scope: Scope, run_root: Path, slurm: Slurm) -> list[Finding]:
    """All findings. If Slurm can't be reached, the list ends there."""
    found = list(readiness(site, run_root, slurm))
    if has_failed(found):
        return found
    inventory = read_inventory(slurm)
    return [*found, *compare(site, inventory, scope.classes), *_limits(slurm, inventory.settings)]


def need_readiness(site: SiteConfig, run_root: Path, slurm: Slurm) -> None:
    """Raises one error with everything that would make any run fail. Called before a submission; must be quick."""
    failed = [one for one in readiness(site, run_root, slurm) if one.level == "fail"]
    if failed:
        listed = "\n".join(f"  - {one.check}: {one.what}; {one.fix}" for one in failed)
        raise SiteError(
            f"no run can be submitted from here:\n{listed}", "correct this; rollart-hpc doctor checks it again"
        )


def readiness(site: SiteConfig, run_root: Path, slurm: Slurm) -> Iterator[Finding]:
    missing = [name for name in COMMANDS if not is_installed(name)]
    if missing:
        fix = "use a login node of the cluster (some need `module load slurm`), or try launchers/devcluster up"
        yield fail("commands", f"not found: {', '.join(missing)}", fix)
        return
    try:
        settings = slurm.settings()
    except SlurmError as error:
        yield from _munge(slurm, _read_locally())
        yield fail("slurmctld", error.what, error.fix or "check that it is up: scontrol ping")
        return
    yield good("commands", f"Slurm {settings.get('SLURM_VERSION', '')}")
    yield good("slurmctld", f"cluster {settings.get('ClusterName', '')} answers")
    yield from _munge(slurm, settings)
    yield from _scheduler(site, settings)
    yield from _disk(run_root)


def _read_locally() -> dict[str, str] | None:
    """What the configuration file of this host says about authentication; None if it can't be read."""
    path = Path(os.environ.get("SLURM_CONF") or _CONF)
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return None
    pairs = (line.split("#")[0].partition("=") for line in lines if line.startswith("Auth"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _munge(slurm: Slurm, known: dict[str, str] | None) -> Iterator[Finding]:
    """`known`: the cluster's settings; None if neither slurmctld nor this host has them."""
    settings = known or {}
    if "munge" not in settings.get("AuthType", "munge"):
        yield note("munge", f"not used: AuthType={settings['AuthType']}")
        return
    if not is_installed("munge"):
        yield note("munge", "there is no munge command here; that Slurm answers shows that it works")
        return
    found = re.search(r"socket=([^,\s]+)", settings.get("AuthInfo", ""))
    socket = [f"--socket={found[1]}"] if found else []
    made = slurm.ask("munge", "--no-input", *socket)
    read = slurm.ask("unmunge", *socket, stdin=made.stdout) if made.code == 0 else made
    if read.code == 0:
        yield good("munge", "a credential was encoded and decoded here")
    else:
        said = read.stderr.strip() or "no message"
        if known is None:
            why = "the cluster may use another socket, and slurmctld does not say which"
            yield warn("munge", f"{said} ({why})", "check slurmctld first")
            return
        yield fail("munge", said, "ask the administrators to run munged on this host with the cluster's key")


def _scheduler(site: SiteConfig, settings: dict[str, str]) -> Iterator[Finding]:
    """Only the backfill scheduler starts heterogeneous jobs."""
    if len({site.serving(need) for need in ("cpu", "compute", "bandwidth")}) == 1:
        yield good("backfill", "not needed: one class serves everything, so jobs are ordinary")
        return
    kind = settings.get("SchedulerType", "")
    if kind != "sched/backfill":
        fix = "heterogeneous jobs need SchedulerType=sched/backfill; or have one class serve every need (serves)"
        yield fail("backfill", f"SchedulerType={kind}", fix)
        return
    found = re.search(r"bf_interval=(\d+)", settings.get("SchedulerParameters", ""))
    interval_s = int(found[1]) if found else _DEFAULT_INTERVAL_S
    text = f"bf_interval is {interval_s} s: a heterogeneous job may start up to that much later than it could"
    if interval_s > _LATE_S:
        yield warn("backfill", text, "be patient with pending jobs, or ask the administrators to lower it")
    else:
        yield good("backfill", text)


def _limits(slurm: Slurm, settings: dict[str, str]) -> Iterator[Finding]:
    enforced = settings.get("AccountingStorageEnforce", "none")
    if enforced in ("none", "(null)", ""):
        yield good("limits", "this cluster enforces none")
        return
    try:
        limits = Limits.read(slurm, getpass.getuser(), settings.get("ClusterName", ""))
    except SlurmError as error:
        yield note("limits", f"enforced ({enforced}), but not visible: {error.what}")
        return
    if not limits.associations and "associations" in enforced:
        yield fail("limits", f"user {getpass.getuser()} has no association", "ask the administrators for an account")
    else:
        qos = sorted({name for row in limits.associations for name in row["QOS"].split(",") if name})
        accounts = ", ".join(limits.accounts) or "none"
        yield good("limits", f"accounts: {accounts}; QOS: {', '.join(qos) or 'none'}")


def _disk(run_root: Path) -> Iterator[Finding]:
    """Free space is known to the file system. A quota shows only when a file is written."""
    place = next(path for path in (run_root, *run_root.parents) if os.path.exists(path))  # creates nothing
    test = place / f".doctor-{secrets.token_hex(4)}"
    try:
        with disk_errors(run_root), open(test, "wb") as file:
            file.write(os.urandom(_QUOTA_TEST_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except SiteError as error:
        yield fail("disk", error.what, error.fix)
        return
    finally:
        with suppress(OSError):
            test.unlink()
    free_gb = shutil.disk_usage(place).free / 1e9
    text = f"{run_root} is writable; {free_gb:.0f} GB free"
    if free_gb < _LITTLE_GB:
        yield warn("disk", text, "checkpoints may not fit: free some space, or set run_root in the site file")
    else:
        yield good("disk", text)
