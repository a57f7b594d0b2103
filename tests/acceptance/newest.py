"""The tests of tests/slurm under the newest Slurm that Debian has, and with a real Apptainer.

Both come from Debian's unstable distribution, which debootstrap installs into a directory. The tests run with that
directory as their root, in a mount namespace of their own; Python, its packages and this repository are those of the
machine, under the same paths.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.acceptance.drive import ROOT, table, write_page

SUITE = "sid"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = (
    "ca-certificates", "slurmctld", "slurmd", "slurm-client", "munge", "apptainer", "squashfs-tools", "iproute2",
    "procps", "util-linux", "libffi8", "git",
)  # fmt: skip
ENTER = r"""
set -e
root=$1; shift
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"; mount -t proc proc "$root/proc"; mount --rbind /sys "$root/sys"
for path in %(paths)s; do mkdir -p "$root$path"; mount --bind "$path" "$root$path"; done
mkdir -p "$root/mnt/old"; cd "$root"; pivot_root . mnt/old; cd /; umount -l /mnt/old
exec "$@"
"""
LINE = re.compile(r"^(tests/slurm/\S+::\S+) (PASSED|FAILED|SKIPPED|ERROR)", re.MULTILINE)


def newest(keep: Path, tests: list[str]) -> bool:
    """`tests`: what to run; empty = all of tests/slurm."""
    root = keep / SUITE
    if not root.exists():
        make(root)
    versions = [said(root, "slurmctld", "-V"), said(root, "apptainer", "--version")]
    command = [sys.executable, "-m", "pytest", "-v", "-n", "0", "-p", "no:cacheprovider"]
    done = enter(root, *command, *(tests or ["tests/slurm"]))
    print(done.stdout[-5000:], done.stderr[-1000:])
    results = LINE.findall(done.stdout)
    write_page("newest", page(versions, results))
    return done.returncode == 0 and bool(results)


def make(root: Path) -> None:
    if not shutil.which("debootstrap"):
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "debootstrap"], check=True)
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root), MIRROR]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for name in ("hosts", "hostname", "resolv.conf"):
        shutil.copy(f"/etc/{name}", root / "etc" / name)
    settings = root / "etc/apptainer/apptainer.conf"  # a machine may lack capabilities that it would give to root
    full = "root default capabilities = full"
    settings.write_text(settings.read_text().replace(full, "root default capabilities = no"))


def enter(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with another root. Its mounts end with it."""
    homes = {str(ROOT), sys.prefix, sys.base_prefix, *(path for path in sys.path if path.endswith("site-packages"))}
    paths = [path for path in sorted({"/tmp", "/opt", *homes}) if Path(path).exists()]
    script = ENTER % {"paths": " ".join(f"'{path}'" for path in paths)}
    within = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(root)]
    variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    where = ["env", f"--chdir={ROOT}", "-i", *(f"{name}={value}" for name, value in variables.items())]
    return subprocess.run(
        [*within, *where, "OMP_NUM_THREADS=1", *command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def said(root: Path, *command: str) -> str:
    done = enter(root, *command)
    return (done.stdout or done.stderr).strip()


def page(versions: list[str], results: list[tuple[str, str]]) -> list[str]:
    rows = [[f"`{name}`", outcome.lower()] for name, outcome in results]
    return [
        "# The newest Slurm, and Apptainer",
        "",
        f"The tests of `tests/slurm` with Debian's unstable distribution ({' and '.join(versions)}) in",
        "a root directory of their own, on one machine. Containers are real: trainer and engines run in a SIF image.",
        "Measured by:",
        "",
        "```",
        "make acceptance-newest",
        "```",
        "",
        *table(["test", "result"], rows),
    ]
