"""Trainer and engines in real Apptainer containers, in one job and in separate jobs. Skipped where it is not installed
(`make acceptance-newest` installs it); tests/slurm/test_classes.py has a stand-in.

The image has only the places where directories of this machine are mounted: it is made in a second.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rollart_hpc.devcluster.cluster import Cluster
from rollart_hpc.launch.ownership import read_ownership
from tests.slurm.submitted import ALONE, SLOWLY, Submitted, cli

SITE = """
base: dev
classes:
  h800: {{python: &python {python}, container: &container {{kind: apptainer, image: {image}, mounts: {mounts}}}}}
  h20: {{python: *python, container: *container}}
"""
SYSTEM = ("/usr", "/etc/alternatives")
LINKS = ("bin", "lib", "lib64", "sbin")
PLACES = ("usr", "proc", "sys", "dev", "tmp", "etc", "root", "var/tmp", "home")
INSIDE = "/.singularity.d"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    apptainer = shutil.which("apptainer")
    if apptainer is None:
        pytest.skip("Apptainer is not installed")
    box, image = tmp_path / "box", tmp_path / "an image.sif"
    for place in (*PLACES, *mounts()):
        (box / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for name in LINKS:
        if Path("/", name).is_symlink():
            (box / name).symlink_to(Path("/", name).readlink())
    subprocess.run([apptainer, "build", str(image), str(box)], check=True, capture_output=True, timeout=120)
    return image


def mounts() -> list[str]:
    """This Python, and where its packages are."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return [*SYSTEM, *dict.fromkeys([sys.base_prefix, sys.prefix, *packages])]


@pytest.mark.parametrize("mode", ["het", "jobs"])
def test_trainer_and_engines_are_inside_supervisor_and_controller_outside(
    cluster: Cluster, tmp_path: Path, raw_model: Path, image: Path, mode: str
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(SITE.format(python=sys.executable, image=image, mounts=mounts()))
    run = Submitted(cluster, tmp_path / "a run", raw_model, str(site))
    run.submit(f"launch.mode={mode}", "steps=100000", "validation.plays=0", SLOWLY, ALONE)
    run.until_steps(2)
    owner = read_ownership(run.run)
    assert owner is not None
    inside = {name for name, proc in owner.procs.items() if is_inside(cluster, proc.pid)}
    assert inside == {name for name in owner.procs if name.startswith(("trainer", "engine", "relay"))}
    assert {"trainer-0", "engine-compute-0", "engine-bandwidth-0"} < inside < owner.procs.keys()
    done = cli("cancel", str(run.run.path))
    assert done.returncode == 0, done.stderr + run.told()
    assert not run.processes() and not run.run.store_root.exists()


def is_inside(cluster: Cluster, pid: int) -> bool:
    return cluster.run("test", "-e", f"/proc/{pid}/root{INSIDE}").returncode == 0
