"""The closed schema of a site file: what a cluster has, how jobs are started there, what differs for its runs.

Owns the keys, their defaults and the rules between them. Reads no file and asks no cluster.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from rollart_hpc.config.schema import key, part
from rollart_hpc.hardware import CLASSES, GPUS, Gpu

# Decided by the plan or by what a run needs to survive: no free option may say otherwise.
RESERVED_OPTIONS = (
    "array", "chdir", "cpus-per-task", "error", "export", "gpus", "gpus-per-node", "gpus-per-task", "gres", "hetjob",
    "job-name", "mem", "mem-per-cpu", "mem-per-gpu", "nodes", "no-requeue", "ntasks", "ntasks-per-node", "open-mode",
    "output", "parsable", "partition", "propagate", "requeue", "signal", "test-only", "time", "wait", "wrap",
)  # fmt: skip
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*", re.IGNORECASE)
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,31}")


@dataclass
class Options:
    """What may be said for the whole site and for each hardware class; the class's word counts."""

    account: str = key("", "account charged")
    qos: str = key("", "quality of service")
    constraint: str = key("", "features the nodes must have")
    reservation: str = key("", "reservation used")
    exclude: str = key("", "nodes never used, e.g. n[1-3]")
    mail_user: str = key("", "who gets mail about jobs")
    mail_type: str = key("", "about what, e.g. END,FAIL")
    sbatch: dict[str, Any] = key({}, "further sbatch options by long name, e.g. {exclusive: true, licenses: fs}")
    python: str = key("", "interpreter in the job; empty = the one that submits")
    prologue: str = key(
        "",
        "shell lines before processes start: modules, activation, variables; the site's run once, in the batch script",
    )
    epilogue: str = key("", "shell lines on every node after they have ended, 20 s at most")
    scratch: str = key("", "directory for temporary files, on the node itself; variables are expanded there")


@dataclass
class HardwareClass(Options):
    """A partition's nodes of one kind."""

    partition: str = key("", "partition that has these nodes")
    gres: str = key("", "type in --gres=gpu:TYPE:N; empty = GPUs of any type")
    gpu: str = key("", "kind of GPU whose figures are known: h800, h20; empty = the figures stand below")
    gpus: int = key(0, "GPUs of a node", low=0)
    cpus: int = key(1, "CPUs of a node", low=1)
    threads_per_core: int = key(1, "CPUs of a core; Slurm gives whole cores to every process", low=1)
    memory_gb: float = key(0.0, "memory of a node that jobs may have; 0 = jobs there don't ask for memory", low=0)
    max_nodes: int = key(0, "nodes a job may have; 0 = no limit", low=0)
    max_minutes: int = key(0, "longest time limit of a job; 0 = none", low=0)
    tflops: float = key(0.0, "dense BF16 TFLOPS of a GPU; 0 = as known of `gpu`", low=0)
    bandwidth_tb_s: float = key(0.0, "memory bandwidth of a GPU in TB/s; 0 = as known of `gpu`", low=0)
    cost: float = key(0.0, "cost of a GPU hour, of a node hour where there are no GPUs; 0 = as known of `gpu`", low=0)


@dataclass
class NetworkConfig:
    """How processes on different nodes find each other. An interface is a name or the CIDR of its network."""

    control: str = key("", "interface of the controller's socket, e.g. eth0 or 10.1.0.0/16; empty = the host's own")
    data: str = key("", "interface that weights and collectives use, e.g. ib0; empty = that of `control`")
    ports: str = key("", "ports the controller may use, e.g. 40000-40100; empty = any free one")
    env: dict[str, str] = key({}, "variables for every process, e.g. {NCCL_IB_HCA: mlx5}")


@dataclass
class SiteConfig(Options):
    """A file in configs/sites, or your own."""

    name: str = key("local", "name of the site")
    launcher: str = key("local", "how processes are started", choices=("local", "slurm"))
    classes: dict[str, HardwareClass] = field(
        default_factory=dict, metadata={"help": "hardware classes by a name of yours"}
    )
    serves: dict[str, str] = field(
        default_factory=dict,
        metadata={"help": "which of `classes` serves a need; unless told, the class of that name", "names": CLASSES},
    )
    network: NetworkConfig = part(NetworkConfig, "interfaces, ports, variables")
    run_root: str = key("", "where run directories go, on a file system that all nodes share; empty = ./runs")
    mpi: str = key("none", "how srun starts MPI processes", choices=("pmi2", "pmix", "none"))
    submit_from_compute: bool = key(True, "sbatch works inside a job; elastic workers need it")
    defaults: dict[str, Any] = key({}, "keys of the run file that hold at this site unless the run file sets them")

    def serving(self, need: str) -> str:
        """Name of the class that serves a need (cpu, compute, bandwidth)."""
        if need in self.serves:
            return self.serves[need]
        return need if need in self.classes else next(iter(self.classes))

    def options(self, name: str) -> Options:
        """What holds for a class: its own word, else the site's."""
        own = self.classes[name]
        chosen = {f.name: getattr(own, f.name) or getattr(self, f.name) for f in fields(Options) if f.name != "sbatch"}
        return Options(**chosen, sbatch={**self.sbatch, **own.sbatch})

    def gpu(self, name: str) -> Gpu:
        """Figures of a class's GPUs; those not known are 0."""
        own = self.classes[name]
        known = GPUS.get(own.gpu, Gpu(0.0, 0.0, 0.0, 0.0))
        return Gpu(
            tflops=own.tflops or known.tflops,
            memory_gb=known.memory_gb,
            bandwidth_tb_s=own.bandwidth_tb_s or known.bandwidth_tb_s,
            cost=own.cost or known.cost,
        )


def find_site_conflicts(site: SiteConfig) -> list[str]:
    """Every reason why nothing can be run at this site."""
    found = [*find_option_problems("sbatch", site.sbatch), *_network(site.network)]
    for name, own in site.classes.items():
        found.extend(f"classes.{name}{problem}" for problem in _class(name, own))
    if site.launcher == "slurm":
        found.extend(_serves(site))
    return found


def find_option_problems(path: str, options: dict[str, Any]) -> Iterator[str]:
    """A free map of sbatch options: `true` is a flag, `false` leaves an option out."""
    for name, value in options.items():
        if not _OPTION.fullmatch(name):
            yield f"{path}.{name}: write the long name of an sbatch option without dashes, e.g. nice"
        elif name in RESERVED_OPTIONS:
            yield f"{path}.{name}: is decided by the plan; it can't be set here"
        elif isinstance(value, (dict, list)) or value is None or "\n" in str(value):
            yield f"{path}.{name}: {value!r} is neither text, a number, true nor false"


def _class(name: str, own: HardwareClass) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield ": the name may hold letters, digits, '.', '_' and '-' only"
    if not own.partition:
        yield ".partition: empty; name the partition that has these nodes (sinfo lists them)"
    if own.gpu and own.gpu not in GPUS:
        yield (
            f".gpu: {own.gpu!r} is not known ({', '.join(GPUS)} are); leave it empty and give tflops, "
            "bandwidth_tb_s and cost"
        )
    if (own.gres or own.gpu) and not own.gpus:
        yield ".gpus: 0, but gres or gpu names a kind of GPU; say how many a node has"
    yield from (f".{problem}" for problem in find_option_problems("sbatch", own.sbatch))


def _serves(site: SiteConfig) -> Iterator[str]:
    if not site.classes:
        yield "classes: none; launcher: slurm needs at least one, e.g. classes: {cpu: {partition: cpu, cpus: 16}}"
        return
    for need in CLASSES:
        name = site.serves.get(need, "")
        if name and name not in site.classes:
            yield f"serves.{need}: there is no class {name!r}; there are: {', '.join(site.classes)}"
        elif not name and need not in site.classes and len(site.classes) > 1:
            yield f"serves.{need}: not set; which class is it? {', '.join(site.classes)}"


def _network(network: NetworkConfig) -> Iterator[str]:
    for name in ("control", "data"):
        value = getattr(network, name)
        if value and not (_is_network(value) if "/" in value else _INTERFACE.fullmatch(value)):
            yield f"network.{name}: {value!r} is neither the name of an interface (ib0) nor a network (10.1.0.0/16)"
    if network.ports:
        low, dash, high = network.ports.partition("-")
        if not (dash and low.isdigit() and high.isdigit() and 1024 <= int(low) <= int(high) <= 65535):
            yield f"network.ports: {network.ports!r} is no range between 1024 and 65535, e.g. 40000-40100"


def _is_network(value: str) -> bool:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        return False
    return True
