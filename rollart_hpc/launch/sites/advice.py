"""What `site init` proposes besides the classes: sizes of processes, and how runs use classes that serve no need.

Owns the proposals. Knows the written classes only, no Slurm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollart_hpc.hardware import COMPUTE, CPU

Classes = Mapping[str, Mapping[str, Any]]  # as the site file has them
_MOST_CPUS = {"controller": 4, "env": 4, "engine": 8, "trainer": 8}
_MOST_GB = {"controller": 16, "env": 8}


def default_lines(classes: Classes, serves: Mapping[str, str]) -> Iterator[str]:
    """Sizes that no model decides; memory of engines, ranks and relays is left to `launch.sizes`."""
    if not classes:
        return
    cpu, gpu = classes[serves[CPU]], classes[serves[COMPUTE]]
    yield "defaults:  # GUESS: sizes of processes; what is not set follows from the size of the model"
    for role in ("controller", "env"):
        cpus = max(1, min(_MOST_CPUS[role], cpu["cpus"] // 8))
        memory_gb = max(1, min(_MOST_GB[role], int(cpu["memory_gb"] // 16)))
        yield f"  {role}: {{cpus: {cpus}, memory_gb: {memory_gb}}}"
    per_gpu = gpu["cpus"] // gpu.get("gpus", 1) - 1  # a CPU per GPU is left for relays and others
    if gpu.get("gpus") and per_gpu > 1:
        for role in ("engine", "trainer"):
            yield f"  {role}: {{cpus: {min(_MOST_CPUS[role], per_gpu)}}}"


def pool_lines(classes: Classes, serves: Mapping[str, str]) -> Iterator[str]:
    """An example for a class that serves nothing."""
    idle = [name for name, own in classes.items() if own.get("gpus") and name not in serves.values()]
    if idle:
        first = idle[0]
        yield f"# These classes serve no need, so only runs that name them use them: {', '.join(idle)}. In a run file:"
        yield f"#   pools: {{compute: {{engines: 4}}, {first}: {{class: {first}, engines: 4}}}}"
        yield f"#   tasks: {{my-task: {{affinity: {first}}}}}"
