"""Installs Debian's Slurm packages if they are missing, and says so first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rollart_hpc.errors import SiteError

_PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "nsenter": "util-linux",
}
# The core packages of MariaDB contain no service, so nothing is started outside the cluster.
_ACCOUNTING = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
}
_LIMIT_S = 900
_PROBE_LIMIT_S = 60
# The daemons are in directories that not every PATH contains.
SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def why_not() -> str:
    """Why this machine can't have a development cluster; empty if it can, perhaps after installing packages."""
    if os.geteuid() != 0:
        return "a development cluster needs root: it starts Slurm's daemons and makes device files"
    if _missing(accounting=False) and not shutil.which("apt-get"):
        return "Slurm is not installed, and without apt-get (Debian, Ubuntu) it can't be installed from here"
    if shutil.which("unshare"):
        probe = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "true"]
        done = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=_PROBE_LIMIT_S)
        if done.returncode != 0:
            return f"this machine does not allow namespaces (a container needs SYS_ADMIN): {done.stderr.strip()}"
    if not _may_make_devices():
        return "device files for fake GPUs can't be created (a container needs the capability MKNOD)"
    return ""


def _may_make_devices() -> bool:
    with tempfile.TemporaryDirectory() as directory:
        try:
            os.mknod(Path(directory) / "null", 0o020600, os.stat(os.devnull).st_rdev)
        except PermissionError:
            return False
    return True


def install(*, accounting: bool) -> None:
    missing = _missing(accounting)
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise SiteError(f"not installed: {' '.join(missing)}", "install them with your system's package manager")
    print(
        f"installing Debian packages (about 100 MB, half a minute): {' '.join(missing)}\n"
        "  they stay after `down`; to remove them: apt-get remove --autoremove " + " ".join(missing),
        file=sys.stderr,
    )
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    if _apt([*apt, "install", "-y", "--no-install-recommends", *missing]):
        _apt([*apt, "update"])
        said = _apt([*apt, "install", "-y", "--no-install-recommends", *missing])
        if said:
            raise SiteError(f"apt-get could not install {' '.join(missing)}: {said}", "install them yourself")


def _missing(accounting: bool) -> list[str]:
    wanted = {**_PACKAGES, **(_ACCOUNTING if accounting else {})}
    return [package for command, package in wanted.items() if not shutil.which(command, path=SEARCH)]


def _apt(command: list[str]) -> str:
    """Returns an empty string on success, else the end of apt's output."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    return "" if done.returncode == 0 else (done.stderr or done.stdout or "no message").strip()[-500:]
