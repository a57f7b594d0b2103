"""What a node has for the processes of a run: GPUs, CPUs, caches. Owns how they are shared out; starts nothing.

Slurm gives the agent's step all GPUs and CPUs that the job has on the node. The agent shares them out, because a step
per process would hide the GPUs of one trainer rank from the others, and NCCL then can't use NVLink between them.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from rollart_hpc.errors import SiteError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_GPUS = Path("/proc/driver/nvidia/gpus")
_NUMA = Path("/sys/devices/system/node")
_OOM_SCORE = 500  # the kernel ends a worker before the agent if the node runs out of memory
# Files that backends compile: on a local disk, because thousands of processes would meet in a shared directory.
_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
    "VLLM_CACHE_ROOT": "vllm",
}


def visible_gpus(variables: Mapping[str, str]) -> list[str]:
    """The GPUs of this step, as Slurm named them: numbers or UUIDs."""
    return [name for name in variables.get(VISIBLE, "").split(",") if name and name != "NoDevFiles"]


def gpus_of_machine(variables: Mapping[str, str]) -> list[str]:
    """Those that the environment shows; without a word there, all of the machine."""
    if VISIBLE in variables:
        return visible_gpus(variables)
    return [str(number) for number, _ in enumerate(_GPUS.glob("*"))]


def cpus_of_machine(variables: Mapping[str, str]) -> int:
    """CPUs that this process may use: those of its allocation, if Slurm does not pin it to them."""
    given = variables.get("SLURM_CPUS_ON_NODE", "")
    return min(len(os.sched_getaffinity(0)), int(given) if given.isdigit() else sys.maxsize)


def memory_of_machine(variables: Mapping[str, str]) -> float:
    """In GB: that of its allocation, else all."""
    given = variables.get("SLURM_MEM_PER_NODE", "")
    return int(given) / 1024 if given.isdigit() and int(given) else memory_gb()


def gpu_variables(gpus: list[str], numbers: Iterable[int]) -> dict[str, str]:
    """The variables that show a process only these of the node's GPUs. Always set: it must not see the agent's."""
    chosen = list(numbers)
    if chosen and max(chosen) >= len(gpus):
        raise SiteError(
            f"the plan wants GPU {max(chosen)} of this node, which shows {len(gpus)}: {','.join(gpus) or 'none'}",
            "check gpus and gres of the class in the site file (rollart-hpc site check)",
        )
    return {VISIBLE: ",".join(gpus[number] for number in chosen)}


def cache_variables(root: Path) -> dict[str, str]:
    return {name: str(root / directory) for name, directory in _CACHES.items() if name not in os.environ}


class Cores:
    """CPUs of this process. Each worker gets its own, from one NUMA node if possible."""

    def __init__(self, cpus: Iterable[int], domains: Iterable[set[int]] = ()) -> None:
        self._free = set(cpus)
        self._domains = [set(domain) & self._free for domain in domains] or [set(self._free)]

    def take(self, count: int) -> set[int]:
        """Empty: not enough are free, and the process is not pinned."""
        if not 0 < count <= len(self._free):
            return set()
        fitting = [domain & self._free for domain in self._domains if len(domain & self._free) >= count]
        tightest: set[int] = min(fitting, key=len) if fitting else self._free
        chosen = set(sorted(tightest)[:count])
        self._free -= chosen
        return chosen

    def give_back(self, cpus: set[int]) -> None:
        self._free |= cpus


def own_cores(variables: Mapping[str, str]) -> Cores:
    """The CPUs to pin workers to: none unless they are this step's alone, because other jobs would pin theirs to the
    same ones.

    They are if Slurm bound the step to as many CPUs as it allocated, on a machine that bears the node's name. Under
    another name it may be one of several virtual nodes that share the machine.
    """
    cpus = os.sched_getaffinity(0)
    host = socket.gethostname().partition(".")[0]
    is_bound = variables.get("SLURM_CPUS_ON_NODE") == str(len(cpus))
    if not is_bound or variables.get("SLURMD_NODENAME", "").partition(".")[0] != host:
        return Cores(())
    domains = []
    for path in sorted(_NUMA.glob("node*/cpulist")):
        with suppress(OSError, ValueError):
            domains.append(parse_cpus(path.read_text().strip()))
    return Cores(cpus, domains)


def parse_cpus(text: str) -> set[int]:
    """
    >>> sorted(parse_cpus("0-2,8"))
    [0, 1, 2, 8]
    """
    ranges = (part.partition("-") for part in text.split(",") if part)
    return {cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1)}


def settle(pid: int, cpus: set[int]) -> None:
    """Pin a process that has just started, and have the kernel choose it before the agent when memory runs out."""
    with suppress(OSError):  # it has ended already
        if cpus:
            os.sched_setaffinity(pid, cpus)
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(_OOM_SCORE))


def num_killed_for_memory() -> int:
    """How many processes the kernel has killed because this one's control group was out of memory."""
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            base = "/sys/fs/cgroup" if not controllers else "/sys/fs/cgroup/memory"
            for name in ("memory.events.local", "memory.events", "memory.oom_control"):
                for entry in _read(f"{base}{group}/{name}").splitlines():
                    if entry.startswith("oom_kill "):
                        return int(entry.split()[1])
    return 0


def memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text()
    return ""
