"""The closed schema of a site file: what a cluster has, how jobs start there, which defaults its runs get.

Owns the keys, their defaults and the rules between them. Reads no file and asks no cluster.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from rollart_hpc.config.check import nearest
from rollart_hpc.config.fields import key, part
from rollart_hpc.config.launchers import LAUNCHERS, is_cluster
from rollart_hpc.hardware import GPUS, NEEDS, Gpu

# Set by the plan, or needed for requeueing: `sbatch` maps may not override them.
RESERVED_OPTIONS = (
    "array", "chdir", "cpus-per-task", "error", "export", "gpus", "gpus-per-node", "gpus-per-task", "gres", "hetjob",
    "job-name", "mem", "mem-per-cpu", "mem-per-gpu", "nodes", "no-requeue", "ntasks", "ntasks-per-node", "open-mode",
    "output", "parsable", "partition", "propagate", "requeue", "signal", "test-only", "time", "wait", "wrap",
)  # fmt: skip
_OTHER_CLUSTERS = ("cluster", "clusters", "cluster-constraint")  # a job there would not be found again
# Set by the step that starts a node's processes, or by `container`: `srun` maps may not override them.
RESERVED_STEP_OPTIONS = (
    "chdir", "container-image", "container-mounts", "container-workdir", "cpus-per-task", "error", "exact", "exclusive",
    "export", "export-file", "gpu-bind", "gpus", "gpus-per-node", "gpus-per-task", "gres", "het-group", "immediate",
    "input", "jobid", "job-name", "kill-on-bad-exit", "label", "mem", "mem-per-cpu", "mem-per-gpu", "mpi", "multi-prog",
    "nodelist", "nodes", "no-kill", "ntasks", "ntasks-per-node", "output", "overlap", "propagate", "pty", "relative",
    "time", "unbuffered", "wait",
)  # fmt: skip
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*", re.IGNORECASE)
_MOUNT = re.compile(r"/[^:\n]*(:/[^:\n]*(:[a-z,]+)?)?")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,31}")


@dataclass
class ContainerConfig:
    """Where a class sets `kind`, its container replaces that of the site."""

    kind: str = key(
        "",
        "how processes get into the container",
        choices={
            "": "no container",
            "pyxis": "srun's plugin: --container-image",
            "apptainer": "apptainer exec, which Singularity has too",
        },
    )
    image: str = key("", "image: a path, or what pyxis or Apptainer can fetch", rule="required with kind")
    mounts: list[str] = key(
        [], "directories of the host to mount, as /host:/container or /host, beside what the run itself needs"
    )


@dataclass
class Options:
    """What can be set for the whole site and for each hardware class; the class overrides the site."""

    account: str = key("", "account to charge; job.account of the run overrides it")
    qos: str = key("", "quality of service; job.qos of the run overrides it")
    constraint: str = key("", "node features to require, as in sbatch")
    reservation: str = key("", "reservation to use; job.reservation of the run overrides it")
    exclude: str = key("", "nodes to exclude, e.g. n[1-3]")
    mail_user: str = key("", "address for mail about jobs")
    mail_type: str = key("", "events to mail about, e.g. END,FAIL; empty = none")
    sbatch: dict[str, Any] = key(
        {},
        "further sbatch options by long name, e.g. {exclusive: true, licenses: fs}; true sets a flag, false in a class "
        "removes an option of the site",
        rule="no option that the plan decides",
    )
    python: str = key("", "Python interpreter in the job; empty = the one that submits")
    prologue: str = key(
        "",
        "shell lines that run before processes start: modules, activation, variables; those of the site, or of the "
        "controller's class, run once, in the batch script, and every process inherits what they export; those of "
        "another class run before each of its processes",
    )
    epilogue: str = key("", "shell lines that run on every node after its processes have ended; stopped after 20 s")
    scratch: str = key("", "directory for temporary files (TMPDIR) on each node; variables are expanded on the node")
    srun: dict[str, Any] = key(
        {},
        "further srun options by long name, for the step that starts the processes of a node, e.g. {cpu-bind: none}; "
        "true sets a flag, false in a class removes an option of the site",
        rule="no option that the step itself sets",
    )
    container: ContainerConfig = part(ContainerConfig, "container that the processes of a node run in")


@dataclass
class HardwareClass(Options):
    """Nodes of one kind in one partition."""

    partition: str = key("", "partition of these nodes", rule="required with launcher: slurm")
    gres: str = key("", "GPU type in --gres=gpu:TYPE:N; empty = any type")
    gpu: str = key(
        "",
        "model of the GPUs, which implies gpu_memory_gb, tflops, bandwidth_tb_s and cost; empty = as those keys say",
        rule=f"one of {', '.join(GPUS)}",
    )
    gpus: int = key(0, "GPUs per node; 0 = none", low=0, rule="at least 1 if gres or gpu is set")
    cpus: int = key(1, "CPUs per node", low=1)
    threads_per_core: int = key(
        1, "CPUs per core, where Slurm counts hardware threads; CPUs of a process are rounded up to whole cores", low=1
    )
    memory_gb: float = key(0.0, "memory per node that jobs may use, in GB; 0 = jobs request no memory", low=0)
    max_nodes: int = key(0, "maximum nodes per job; 0 = no limit", low=0)
    max_gpus: int = key(0, "maximum GPUs of this class per job, e.g. a quota; 0 = no limit", low=0)
    whole_nodes: bool = key(
        False,
        "take whole nodes: all GPUs and CPUs of a node are requested and counted, as with sbatch: {exclusive: true}",
    )
    max_minutes: int = key(0, "maximum time limit of a job, in minutes; 0 = no limit", low=0)
    gpu_memory_gb: float = key(
        0.0, "memory per GPU, in GB, against which `plan` checks what a run needs; 0 = that of `gpu`", low=0
    )
    tflops: float = key(0.0, "dense BF16 TFLOPS per GPU; 0 = that of `gpu`", low=0)
    bandwidth_tb_s: float = key(0.0, "memory bandwidth per GPU, in TB/s; 0 = that of `gpu`", low=0)
    nvlink_gb_s: float = key(
        0.0, "NVLink bandwidth per GPU, both directions, in GB/s; 0 = that of `gpu`, or PCIe", low=0
    )
    cost: float = key(0.0, "cost per GPU-hour, or per node-hour without GPUs, in any unit; 0 = that of `gpu`", low=0)


@dataclass
class NetworkConfig:
    """An interface is given by name, or by the CIDR of its network."""

    control: str = key("", "interface that the controller listens on, e.g. eth0 or 10.1.0.0/16; empty = the host's own")
    data: str = key("", "interface for weights and collectives, e.g. ib0; empty = that of `control`")
    ports: str = key(
        "",
        "range of the ports that processes listen on, e.g. 40000-40100; empty = any free port; MPI chooses its own",
        rule="within 1024-65535",
    )
    env: dict[str, str] = key({}, "environment variables of every process, e.g. {NCCL_IB_HCA: mlx5}")


@dataclass
class SiteConfig(Options):
    """A file in configs/sites, or your own."""

    name: str = key("local", "name of the site", default_text="name of the file without its suffix")
    launcher: str = key(
        "local",
        "how processes start",
        choices={name: declared.summary for name, declared in LAUNCHERS.items()},
    )
    classes: dict[str, HardwareClass] = field(
        default_factory=dict, metadata={"help": "hardware classes, under names of your choice"}
    )
    serves: dict[str, str] = field(
        default_factory=dict,
        metadata={
            "help": "which of `classes` serves each need; by default the class of that name, or the only class; a need "
            "that none serves is an error only in runs that name no class for it",
            "names": NEEDS,
        },
    )
    network: NetworkConfig = part(NetworkConfig, "how processes on different nodes reach each other")
    run_root: str = key(
        "",
        "directory for run directories, on a file system that all nodes share; variables are "
        "expanded; ROLLART_RUN_ROOT overrides it; empty = ./runs",
    )
    mpi: str = key(
        "none",
        "--mpi option of srun, for weights.collective: mpi; none = MPI can't be used",
        choices=("pmi2", "pmix", "none"),
    )
    submit_from_compute: bool = key(True, "whether sbatch works inside a job, which elastic reward workers need")
    defaults: dict[str, Any] = key({}, "values for keys of the run file; the run file overrides them")

    def serving(self, need: str) -> str:
        """Name of the class that serves a need (cpu, compute, bandwidth); empty if none does."""
        only = next(iter(self.classes)) if len(self.classes) == 1 else ""
        return self.serves.get(need) or (need if need in self.classes else only)

    def needs_served_by(self, name: str) -> set[str]:
        return {need for need in NEEDS if self.serving(need) == name}

    def options(self, name: str) -> Options:
        """The options of a class: its own, else the site's."""
        own = self.classes[name]
        chosen = {f.name: getattr(own, f.name) or getattr(self, f.name) for f in fields(Options)}
        chosen |= {"sbatch": {**self.sbatch, **own.sbatch}, "srun": {**self.srun, **own.srun}}
        return Options(**chosen | {"container": own.container if own.container.kind else self.container})

    def gpu(self, name: str) -> Gpu:
        """Figures of a class's GPUs; unknown ones are 0."""
        own = self.classes[name]
        known = GPUS.get(own.gpu, Gpu(0.0, 0.0, 0.0, 0.0))
        return Gpu(
            tflops=own.tflops or known.tflops,
            memory_gb=own.gpu_memory_gb or known.memory_gb,
            bandwidth_tb_s=own.bandwidth_tb_s or known.bandwidth_tb_s,
            cost=own.cost or known.cost,
            nvlink_gb_s=own.nvlink_gb_s or known.nvlink_gb_s,
        )


def find_site_conflicts(site: SiteConfig) -> list[str]:
    """Every reason why no run can start at this site."""
    found = [*_options("", site), *_network(site.network)]
    for name, own in site.classes.items():
        found.extend(f"classes.{name}{problem}" for problem in _class(name, own, is_cluster(site.launcher)))
        found.extend(_options(f"classes.{name}.", own))
    if is_cluster(site.launcher):
        found.extend(_serves(site))
    return found


def find_option_problems(
    path: str, options: dict[str, Any], command: str = "sbatch", reserved: tuple[str, ...] = RESERVED_OPTIONS
) -> Iterator[str]:
    """Problems of a map of options of a command: `true` sets a flag, `false` removes an option."""
    for name, value in options.items():
        if not _OPTION.fullmatch(name):
            yield f"{path}.{name}: not an {command} option; write its long name without the leading dashes, e.g. nice"
        elif name in _OTHER_CLUSTERS:
            yield f"{path}.{name}: jobs go to the cluster of this login node only; remove it and submit there"
        elif name in reserved:
            yield f"{path}.{name}: set by the plan, not here; remove it"
        elif isinstance(value, (dict, list)) or value is None or "\n" in str(value):
            yield f"{path}.{name}: {value!r} is not text, a number, true or false; write one of these"


def _class(name: str, own: HardwareClass, has_partitions: bool) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield ": a name may contain only letters, digits, '.', '_' and '-'; rename it"
    if has_partitions and not own.partition:
        yield ".partition: empty; set it to the partition of these nodes (sinfo lists partitions)"
    if own.gpu and own.gpu not in GPUS:
        yield (
            f".gpu: {own.gpu!r} is not one of {', '.join(GPUS)}; leave it empty and set tflops, bandwidth_tb_s and cost"
        )
    if (own.gres or own.gpu) and not own.gpus:
        yield ".gpus: 0, but gres or gpu names a GPU; set it to the number of GPUs per node"
    if own.max_gpus and own.max_gpus < (own.gpus if own.whole_nodes else 1):
        yield f".max_gpus: {own.max_gpus} is less than one node of {own.gpus} GPUs, and whole_nodes is true; raise it"
    if own.max_gpus and not own.gpus:
        yield f".max_gpus: {own.max_gpus}, but its nodes have no GPUs; remove it, or set gpus"


def _options(path: str, options: Options) -> Iterator[str]:
    yield from find_option_problems(f"{path}sbatch", options.sbatch)
    yield from find_option_problems(f"{path}srun", options.srun, "srun", RESERVED_STEP_OPTIONS)
    container = options.container
    if container.kind and not container.image:
        yield f"{path}container.image: empty; container.kind: {container.kind} needs an image"
    elif (container.image or container.mounts) and not container.kind:
        yield f"{path}container.kind: empty, so the container is not used; set it to pyxis or apptainer"
    for mount in container.mounts:
        if not _MOUNT.fullmatch(mount):
            yield f"{path}container.mounts: {mount!r} is not a mount; write /host/path or /host/path:/container/path"


def _serves(site: SiteConfig) -> Iterator[str]:
    if not site.classes:
        yield "classes: none; launcher: slurm needs at least one, e.g. classes: {cpu: {partition: cpu, cpus: 16}}"
        return
    for need, name in site.serves.items():
        if name not in site.classes:
            yield f"serves.{need}: there is no class {name!r}; {nearest(name, list(site.classes))}"


def _network(network: NetworkConfig) -> Iterator[str]:
    for name in ("control", "data"):
        value = getattr(network, name)
        if value and not (_is_network(value) if "/" in value else _INTERFACE.fullmatch(value)):
            yield f"network.{name}: {value!r} is neither an interface (e.g. ib0) nor a network (e.g. 10.1.0.0/16)"
    if network.ports:
        low, dash, high = network.ports.partition("-")
        if not (dash and low.isdigit() and high.isdigit() and 1024 <= int(low) <= int(high) <= 65535):
            yield f"network.ports: {network.ports!r} is not a port range within 1024-65535, e.g. 40000-40100"


def _is_network(value: str) -> bool:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        return False
    return True
