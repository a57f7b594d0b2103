"""One development cluster: starts and ends it, and runs commands inside it."""

from __future__ import annotations

import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollart_hpc.devcluster import layout, packages, topology, users
from rollart_hpc.devcluster.daemons import Daemons
from rollart_hpc.devcluster.namespace import Holder, read_holder, start_holder
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.launch.slurm.commands import Slurm, clean_environment

ACCOUNT = "dev"


@dataclass(frozen=True)
class Cluster:
    """A running development cluster."""

    files: layout.ClusterFiles
    holder: Holder

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a process needs to reach it."""
        return {"SLURM_CONF": str(self.files.conf)}

    @property
    def slurm(self) -> Slurm:
        return Slurm(self.files.conf)

    def command(self, command: Sequence[str], *, user: str = "", directory: Path | None = None) -> list[str]:
        """The command that runs `command` in the namespaces of its jobs: same users, paths and process ids.

        A user starts in the home directory with a fresh environment, as after a login; ours must not leak.
        """
        conf = f"SLURM_CONF={self.files.conf}"
        if not user:
            return self.holder.enter(["env", conf, *command], directory=directory or Path("/"))
        home = self.files.homes / user
        if not home.is_dir():
            home = Path(pwd.getpwnam(user).pw_dir)
        path = f"PATH={Path(sys.executable).parent}:{packages.SEARCH}"
        fresh = ["env", "-i", conf, f"HOME={home}", f"USER={user}", f"LOGNAME={user}", "LANG=C.UTF-8", path]
        return self.holder.enter([*fresh, *command], user=user, directory=directory or home)

    def run(
        self, *command: str, user: str = "", directory: Path | None = None, limit_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run `command` inside and wait for it."""
        return subprocess.run(
            self.command(command, user=user, directory=directory), env=clean_environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=limit_s,
        )  # fmt: skip

    def signal_daemon(self, name: str, signal: str = "KILL") -> None:
        """Signal `slurmctld` or `slurmd-NODE`, to simulate the death of a controller or a node."""
        pid = (self.files.private / "pid" / name).read_text().strip()
        done = self.run("kill", f"-{signal}", pid)
        if done.returncode != 0:
            raise SiteError(f"{name} (process {pid}) can't be signalled: {done.stderr.strip()}")

    def start_daemon(self, name: str) -> None:
        """Restart `slurmctld` or `slurmd-NODE`."""
        daemons = Daemons(self.files, self.holder)
        if name == "slurmctld":
            daemons.controller()
        else:
            daemons.nodes([name.removeprefix("slurmd-")])

    def down(self) -> None:
        """End every daemon and every process of every job, then remove the directory."""
        self.holder.end()
        shutil.rmtree(self.files.path)


def find(directory: Path) -> Cluster | None:
    """The cluster that runs in `directory`; None if there is none."""
    files = layout.ClusterFiles(directory.absolute())
    try:
        holder = read_holder(files.holder)
    except PermissionError:
        raise UserError(f"the cluster in {directory} belongs to another user", "use another --dir") from None
    return Cluster(files, holder) if holder else None


def up(
    directory: Path,
    *,
    layout_name: str = topology.DEFAULT,
    node_count: int = 0,
    accounting: bool = False,
    user_names: Sequence[str] = (),
    exposed: Sequence[Path] = (),
) -> Cluster:
    """Start a cluster. If that fails, end what was started."""
    reason = packages.why_not()
    if reason:
        raise SiteError(reason, "run it as root on Debian or Ubuntu, for example in a container")
    directory = directory.absolute()
    if find(directory):
        raise UserError(
            f"a development cluster is already up in {directory}",
            "use it (`devcluster env`), end it (`devcluster down`), or choose another --dir for a second one",
        )
    described = topology.read_topology(layout_name, node_count)
    clear(directory)
    packages.install(accounting=accounting)
    files = layout.make_files(directory, described.nodes)
    layout.write_configuration(files, described, accounting=accounting)
    layout.make_devices(files, described.nodes)
    cluster = Cluster(files, start_holder(files.holder))
    try:
        _start(cluster, described.nodes, accounting, user_names, exposed)
    except BaseException:
        cluster.holder.end()  # the directory stays, because its logs say why
        raise
    return cluster


def clear(directory: Path) -> bool:
    """Remove the files of a cluster that has ended, and nothing else."""
    files = layout.ClusterFiles(directory.absolute())
    if not files.holder.exists() or find(directory):
        return False
    shutil.rmtree(files.path)
    return True


def _start(
    cluster: Cluster, nodes: list[topology.Node], accounting: bool, names: Sequence[str], exposed: Sequence[Path]
) -> None:
    daemons = Daemons(cluster.files, cluster.holder)
    made = users.make_users(cluster.files, names, daemons.run) if names else []
    if names or exposed:
        users.expose(cluster.files, [*users.python_paths(), *exposed], daemons.run)
    daemons.munge()
    if accounting:
        daemons.database()
    daemons.controller()
    daemons.nodes([node.name for node in nodes])
    daemons.wait_for_nodes(nodes)
    if accounting:
        _make_accounts(cluster, [user.name for user in made])


def _make_accounts(cluster: Cluster, names: list[str]) -> None:
    def manage(*arguments: str) -> None:
        done = cluster.run("sacctmgr", "-i", *arguments)
        if done.returncode != 0:
            raise SiteError(f"sacctmgr {' '.join(arguments)} failed: {done.stderr or done.stdout}")

    manage("add", "account", ACCOUNT, "Description=development")
    for name in names:
        manage("add", "user", name, f"account={ACCOUNT}")
