"""The daemons of a development cluster: how to start each, and when it is ready. Runs inside the namespaces.

Order matters: munge comes first, and slurmdbd must accept connections before slurmctld starts.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rollart_hpc.devcluster.layout import ClusterFiles
from rollart_hpc.devcluster.namespace import Holder
from rollart_hpc.devcluster.packages import SEARCH
from rollart_hpc.devcluster.topology import Node
from rollart_hpc.errors import SiteError
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError, clean_environment

_LIMIT_S = 60.0


class Daemons:
    """Starts daemons inside the namespaces of `holder`."""

    def __init__(self, files: ClusterFiles, holder: Holder) -> None:
        self._files, self._holder = files, holder

    def run(self, *command: str, limit_s: float = _LIMIT_S) -> None:
        """Run a command as root inside the namespaces; raises if it fails. A daemon puts itself into the background."""
        variables = {"PATH": SEARCH, "SLURM_CONF": str(self._files.conf)}
        variables["MYSQL_UNIX_PORT"] = str(self._files.database_socket)
        try:
            done = subprocess.run(
                self._holder.enter(command), env={**clean_environment(), **variables}, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, check=False, timeout=limit_s, umask=0o022,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SiteError(f"{command[0]} did not start within {limit_s:g} s", self._see_logs()) from None
        if done.returncode != 0:
            raise SiteError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-1000:]}", self._see_logs())

    def munge(self) -> None:
        files = self._files
        handle = os.open(files.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            file.write(secrets.token_bytes(128))
        paths = {"socket": files.munge_socket, "key-file": files.key, "pid-file": files.private / "pid" / "munged"}
        paths |= {"log-file": files.logs / "munged.log", "seed-file": files.private / "munge.seed"}
        self.run("munged", "--force", *(f"--{name}={path}" for name, path in paths.items()))

    def database(self) -> None:
        """MariaDB on a private socket, then slurmdbd."""
        files = self._files
        files.database.mkdir(mode=0o700)
        # These tables need not survive a power failure, so don't wait for the disk at every change.
        careless = ["--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite"]
        options = ["--no-defaults", f"--datadir={files.database}", "--user=root", *careless]
        self.run("mariadb-install-db", *options, "--skip-test-db")
        options += ["--skip-networking", f"--socket={files.database_socket}"]
        options += [f"--log-error={files.logs / 'mariadb.log'}", f"--pid-file={files.private / 'pid' / 'mariadbd'}"]
        self.run("sh", "-c", 'setsid "$@" >/dev/null 2>&1 &', "sh", "mariadbd", *options)
        self._until(files.database_socket.exists, "MariaDB", files.logs / "mariadb.log")
        self.run("slurmdbd")
        log = files.logs / "slurmdbd.log"
        slurm = Slurm(files.conf, limit_s=10)
        self._until(lambda: _answers(slurm, "sacctmgr", "-n", "list", "cluster"), "slurmdbd", log)

    def controller(self) -> None:
        self.run("slurmctld")
        slurm = Slurm(self._files.conf, limit_s=10)
        self._until(lambda: _answers(slurm, "sinfo", "-h"), "slurmctld", self._files.logs / "slurmctld.log")

    def nodes(self, names: Sequence[str]) -> None:
        """One shell starts them all: entering the namespaces for each would take longer than slurmd itself."""
        self.run(
            "sh", "-c", 'for name; do slurmd -N "$name" || exit; done', "sh", *names, limit_s=_LIMIT_S + len(names)
        )

    def wait_for_nodes(self, nodes: Sequence[Node]) -> None:
        slurm = Slurm(self._files.conf, limit_s=10)
        fields = {"node": "%N", "state": "%t", "reason": "%E"}
        names = ",".join(node.name for node in nodes)

        def are_idle() -> bool:
            try:
                rows = slurm.table("sinfo", fields, "--Node", f"--nodes={names}")
            except SlurmError:
                return False
            drained = {row["node"]: row["reason"] for row in rows if row["state"].startswith("drain")}
            if drained:
                raise SiteError(f"Slurm drained nodes: {drained}", self._see_logs())
            return {row["node"] for row in rows if row["state"] == "idle"} == {node.name for node in nodes}

        self._until(are_idle, "nodes", self._files.logs / "slurmctld.log")

    def _until(self, condition: Callable[[], bool], what: str, log: Path) -> None:
        deadline = time.monotonic() + _LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                end = log.read_text(errors="replace")[-1500:] if log.exists() else "(empty)"
                raise SiteError(f"{what} did not come up within {_LIMIT_S:g} s; the end of {log}:\n{end}")
            time.sleep(0.05)

    def _see_logs(self) -> str:
        return f"see the logs in {self._files.logs}"


def _answers(slurm: Slurm, *command: str) -> bool:
    try:
        return slurm.ask(*command).code == 0
    except SlurmError:
        return False
