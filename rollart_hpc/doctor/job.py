"""The doctor's batch job, on the first component: listens like a controller, and runs a probe on every component.

`python -m rollart_hpc.doctor.job DIRECTORY CANARY CLASS...`, with the classes in the order of the components.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from rollart_hpc.config.site import SiteConfig
from rollart_hpc.doctor.exchange import ProbeHub
from rollart_hpc.doctor.files import Folder
from rollart_hpc.doctor.probe import LIMIT_S, loopback_finding
from rollart_hpc.doctor.submit import MEMORY_MB, gres
from rollart_hpc.errors import SiteError
from rollart_hpc.launch.finding import Finding, fail
from rollart_hpc.launch.slurm.commands import clean_environment
from rollart_hpc.wire.interfaces import address_of
from rollart_hpc.wire.ports import listen_tcp


def start_probe(
    folder: Folder, canary: str, site: SiteConfig, names: list[str], index: int, hub: tuple[str, int]
) -> subprocess.Popen[str]:
    name = names[index]
    options = site.options(name)
    probe = [options.python or sys.executable, "-P", "-m", "rollart_hpc.doctor.probe"]
    probe += [str(folder.path), canary, name, hub[0], str(hub[1])]
    prologue = options.prologue if index else ""  # the batch script has run that of the first component
    step = ["srun", f"--jobid={os.environ['SLURM_JOB_ID']}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1"]
    step += [
        f"--mem={MEMORY_MB}M",
        f"--gres={gres(site, name) or 'none'}",
        "--mpi=none",
        "--input=none",
        "--export=ALL",
    ]
    step += [f"--het-group={index}"] if len(names) > 1 else []
    scratch = f'export TMPDIR="{options.scratch}"\n' if options.scratch else ""
    shell = ["/bin/bash", "-c", f'{scratch}{prologue}\nexec "$@"', "doctor"]
    environment = clean_environment() | site.network.env
    environment.pop("CUDA_VISIBLE_DEVICES", None)  # set for the first component, wrong in all others
    pipe = subprocess.PIPE
    return subprocess.Popen([*step, *shell, *probe], stdout=pipe, stderr=pipe, text=True, env=environment)


def collect(name: str, step: subprocess.Popen[str]) -> list[Finding]:
    """The findings of a probe, with one more if it failed."""
    try:
        output, errors = step.communicate(timeout=2 * LIMIT_S)
    except subprocess.TimeoutExpired:
        step.kill()
        output, errors = step.communicate()
        errors += "\ntimed out"
    found = []
    for line in output.splitlines():
        try:
            found.append(Finding(**json.loads(line)))
        except (ValueError, TypeError):
            errors += f"\n{line}"
    if step.returncode != 0:
        said = " / ".join(errors.strip().splitlines()[-3:]) or f"exit code {step.returncode}"
        fix = "in the site file, set python to an interpreter that these nodes can run, or load one in prologue"
        found.append(fail(f"{name}: python", f"the probe did not run: {said}", fix))
    return found


def main() -> int:
    directory, canary, *names = sys.argv[1:]
    folder = Folder(Path(directory))
    site = folder.read_site()
    check, interface = "control interface", site.network.control
    try:
        address = address_of(interface)
        listener = listen_tcp(address, site.network.ports)
    except SiteError as error:
        folder.write_findings([fail(check, error.what, error.fix)])
        return 0
    with closing(listener):
        found = [loopback_finding(check, "network.control", interface, address)]
        here = (address, int(listener.getsockname()[1]))
        steps = [start_probe(folder, canary, site, names, index, here) for index in range(len(names))]
        hub = ProbeHub(listener, folder.read_token(), LIMIT_S)
        hub.gather(lambda: {name for name, step in zip(names, steps) if step.poll() is None})
        hub.part()
        for name, step in zip(names, steps):
            found += collect(name, step)
    folder.write_findings(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
