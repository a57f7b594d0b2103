"""The files and the configuration of a development cluster.

Python decides ports and paths; nodes and partitions come from `topology`, the templates are in slurm/devcluster.
Starts nothing.

Other users can pass through the directory (0711), because jobs of ordinary users need munge's socket, the spool
directory and the configuration. Keys, state, logs and the database are in `private` (0700).
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rollart_hpc.devcluster.confinement import FAKE_MAJOR
from rollart_hpc.devcluster.topology import Node, Partition, Topology, free_ports, templates
from rollart_hpc.errors import UserError
from rollart_hpc.files import write_json

_PLAIN = re.compile(r"[A-Za-z0-9/._-]+")  # slurm.conf has no quoting
MANY_NODES = 32
_LONGEST_SOCKET = 100  # the kernel allows 108 bytes


@dataclass(frozen=True)
class ClusterFiles:
    """The directory of one cluster."""

    path: Path

    @property
    def conf(self) -> Path:
        return self.path / "slurm.conf"

    @property
    def is_constrained(self) -> bool:
        """Are memory and GPUs of its jobs enforced?"""
        return bool((self.path / "cgroup.conf").read_text())

    @property
    def private(self) -> Path:
        return self.path / "private"

    @property
    def holder(self) -> Path:
        """Names the process that holds the cluster's namespaces."""
        return self.private / "holder.json"

    @property
    def logs(self) -> Path:
        return self.private / "log"

    @property
    def key(self) -> Path:
        return self.private / "munge.key"

    @property
    def database(self) -> Path:
        return self.private / "database"

    @property
    def database_socket(self) -> Path:
        return self.private / "database.sock"

    @property
    def munge_socket(self) -> Path:
        return self.path / "munge" / "munge.sock"

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    @property
    def tmp(self) -> Path:
        return self.path / "tmp"

    @property
    def devices(self) -> Path:
        return self.path / "dev"

    @property
    def homes(self) -> Path:
        return self.path / "home"


def default_directory() -> Path:
    return Path("/tmp") / f"rollart-devcluster-{os.getuid()}"


def make_files(path: Path, nodes: list[Node]) -> ClusterFiles:
    """Make the directories of a new cluster. Refuses a directory that belongs to another user or is not empty."""
    files = ClusterFiles(path)
    if not _PLAIN.fullmatch(str(path)):
        raise UserError(
            f"slurm.conf can't contain the path {str(path)!r}", "choose a --dir of letters, digits and /._-"
        )
    if len(str(files.munge_socket)) > _LONGEST_SOCKET:
        raise UserError(f"{path} is too long for the path of a socket", "choose a shorter --dir")
    if path.exists() or path.is_symlink():
        _refuse_foreign(path)
    path.mkdir(mode=0o711, parents=True, exist_ok=True)
    path.chmod(0o711)
    for directory in (files.private, files.logs, files.private / "state", files.private / "pid"):
        directory.mkdir(mode=0o700)
    write_json(files.holder, {})  # marks the directory as a cluster's, even if the start fails
    for directory in (files.munge_socket.parent, files.spool, files.tmp, files.devices, files.homes):
        directory.mkdir()
        directory.chmod(0o755)
    for node in nodes:
        (files.spool / node.name).mkdir()
        (files.spool / node.name).chmod(0o755)
        (files.tmp / node.name).mkdir()
        (files.tmp / node.name).chmod(0o1777)
    return files


def _refuse_foreign(path: Path) -> None:
    found = path.lstat()
    if path.is_symlink() or not path.is_dir() or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise UserError(f"{path} is not a private directory of yours", "choose another --dir")
    if any(path.iterdir()):
        raise UserError(f"{path} is not empty", "choose another --dir, or remove it")


def write_configuration(files: ClusterFiles, topology: Topology, *, accounting: bool, constrain: bool = False) -> None:
    """slurm.conf, gres.conf, cgroup.conf and, with accounting, slurmdbd.conf."""
    nodes = topology.nodes
    controller_port, database_port = free_ports(2, taken={node.port for node in nodes})
    fields: dict[str, object] = {
        "host": socket.gethostname(),
        "controller_port": controller_port,
        "database_port": database_port,
        "munge_socket": files.munge_socket,
        "private": files.private,
        "spool": files.spool,
        "tmp": files.tmp,
        "proctrack": "proctrack/cgroup" if constrain else "proctrack/linuxproc",
        "task_plugin": "task/cgroup" if constrain else "task/none",
        "nodes": "\n".join(_node_line(node) for node in nodes),
        "partitions": "\n".join(_partition_line(partition) for partition in topology.partitions),
    }
    # Hundreds of nodes share this machine: a slurmd that has no turn for a while is not dead.
    fields["slurmd_timeout"] = str(10 if len(nodes) <= MANY_NODES else 600)
    fields["accounting"] = _render("accounting-on.conf" if accounting else "accounting-off.conf", fields)
    _write(files.conf, _render("slurm.conf", fields), 0o644)
    _write(files.path / "gres.conf", "".join(_gres_line(files, node) for node in nodes if node.gpus), 0o644)
    _write(files.path / "cgroup.conf", _render("cgroup.conf", fields) if constrain else "", 0o644)
    if accounting:
        _write(files.path / "slurmdbd.conf", _render("slurmdbd.conf", fields), 0o600)


def make_devices(files: ClusterFiles, nodes: list[Node], *, constrain: bool = False) -> None:
    """Fake GPUs: Slurm needs character devices, so each is a copy of /dev/null. Only devices with numbers of their own
    can be allowed and forbidden one by one."""
    null = os.stat(os.devnull).st_rdev
    for number, name in enumerate(sorted({f"{node.gpu}_{i}" for node in nodes for i in range(node.gpus)})):
        os.mknod(files.devices / name, 0o020666, os.makedev(FAKE_MAJOR, number) if constrain else null)
        (files.devices / name).chmod(0o666)


def _node_line(node: Node) -> str:
    gres = f" Gres=gpu:{node.gpu}:{node.gpus}" if node.gpus else ""
    return (
        f"NodeName={node.name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={node.port} "
        f"CPUs={node.cpus} RealMemory={node.memory_mb} State=UNKNOWN{gres}"
    )


def _partition_line(partition: Partition) -> str:
    options = "".join(f" {name}={value}" for name, value in partition.options.items())
    return f"PartitionName={partition.name} Nodes={partition.nodes}{options}"


def _gres_line(files: ClusterFiles, node: Node) -> str:
    return f"NodeName={node.name} Name=gpu Type={node.gpu} File={files.devices}/{node.gpu}_[0-{node.gpus - 1}]\n"


def _render(name: str, fields: dict[str, object]) -> str:
    return Template((templates() / name).read_text()).substitute(fields)


def _write(path: Path, text: str, mode: int) -> None:
    path.write_text(text)
    path.chmod(mode)
