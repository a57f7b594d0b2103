"""How the agent of a node gets into a container. Owns the options of pyxis and Apptainer; starts nothing.

Agents and their processes run inside; supervisor and controller stay outside, because they call Slurm. Besides the
user's mounts a container gets what the run itself needs, under the same paths: the run directory, the model, the
directories of the user's own tasks, and this package if it is a checkout. Both kinds share the host's /dev/shm, network
and process ids, which weights, links and agents rely on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import rollart_hpc
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import ContainerConfig
from rollart_hpc.rundir import RunDir

PYTHON = "python3"  # the image's, unless the class sets `python`
_PACKAGE = Path(rollart_hpc.__file__).resolve().parent.parent


def mounts_of(run: RunDir, config: RunConfig) -> list[str]:
    """Directories of the host that a run needs; those inside the run directory come with it."""
    wanted = [str(run.path), str(_PACKAGE)]
    if config.model.path:
        wanted.append(str(Path(config.model.path).resolve()))
    files = (name.partition(":")[0] for task in config.tasks.values() for name in (task.environment, task.reward))
    wanted += [str(Path(name).resolve().parent) for name in files if name.endswith(".py")]
    return list(dict.fromkeys(wanted))


def srun_options(container: ContainerConfig, needed: Iterable[str], directory: Path) -> Iterator[str]:
    """Of pyxis: srun itself puts the step into the container."""
    if container.kind == "pyxis":
        yield f"--container-image={container.image}"
        yield f"--container-mounts={','.join(_mounts(container, needed))}"
        yield f"--container-workdir={directory}"


def wrapped(
    container: ContainerConfig, command: list[str], needed: Iterable[str], directory: Path, *, gpus: bool
) -> list[str]:
    """The command, inside an Apptainer container if the class has one."""
    if container.kind != "apptainer":
        return command
    binds = [word for mount in _mounts(container, needed) for word in ("--bind", mount)]
    return [
        "apptainer", "exec", *(["--nv"] if gpus else []), *binds, "--pwd", str(directory), container.image, *command,
    ]  # fmt: skip


def _mounts(container: ContainerConfig, needed: Iterable[str]) -> list[str]:
    """HOST:CONTAINER[:OPTIONS], as both kinds want it."""
    given = [mount if ":" in mount else f"{mount}:{mount}" for mount in container.mounts]
    return list(dict.fromkeys([*(f"{path}:{path}" for path in needed), *given]))
