"""The words that pyxis and Apptainer get. Neither is installed here: `tests/slurm` runs a stand-in for Apptainer."""

from __future__ import annotations

from pathlib import Path

from rollart_hpc.config.load import load
from rollart_hpc.config.site import ContainerConfig
from rollart_hpc.launch.slurm.containers import mounts_of, srun_options, wrapped
from rollart_hpc.rundir import RunDir

HERE = Path("/runs/a run")
PYXIS = ContainerConfig(kind="pyxis", image="nvcr.io#nvidia/pytorch:25.01", mounts=["/data:/d:ro", "/scratch"])
APPTAINER = ContainerConfig(kind="apptainer", image="/images/rl.sif", mounts=["/data:/d:ro"])


def test_pyxis_is_options_of_srun() -> None:
    assert list(srun_options(PYXIS, ["/runs/a run"], HERE)) == [
        "--container-image=nvcr.io#nvidia/pytorch:25.01",
        "--container-mounts=/runs/a run:/runs/a run,/data:/d:ro,/scratch:/scratch",
        "--container-workdir=/runs/a run",
    ]
    assert wrapped(PYXIS, ["python3"], [], HERE, gpus=True) == ["python3"]


def test_apptainer_is_a_command_around_ours() -> None:
    assert wrapped(APPTAINER, ["python3", "-m", "x"], ["/runs"], HERE, gpus=True) == [
        "apptainer", "exec", "--nv", "--bind", "/runs:/runs", "--bind", "/data:/d:ro", "--pwd", "/runs/a run",
        "/images/rl.sif", "python3", "-m", "x",
    ]  # fmt: skip
    assert "--nv" not in wrapped(APPTAINER, ["python3"], [], HERE, gpus=False)
    assert list(srun_options(APPTAINER, ["/runs"], HERE)) == []


def test_without_a_container_nothing_changes() -> None:
    assert wrapped(ContainerConfig(), ["python3"], ["/runs"], HERE, gpus=True) == ["python3"]
    assert list(srun_options(ContainerConfig(), ["/runs"], HERE)) == []


def test_a_run_needs_its_directory_its_model_its_tasks_and_this_package(tmp_path: Path) -> None:
    task = tmp_path / "mine" / "task.yaml"
    task.parent.mkdir()
    (tmp_path / "mine" / "env.py").write_text("class Env:\n    pass\n")
    config = load("quickstart")
    config.model.kind, config.model.path = "directory", str(tmp_path / "model")
    next(iter(config.tasks.values())).environment = f"{tmp_path}/mine/env.py:Env"
    mounts = mounts_of(RunDir(tmp_path / "run"), config)
    assert {str(tmp_path / "run"), str(tmp_path / "model"), str(tmp_path / "mine")} < set(mounts)
    assert any((Path(mount) / "rollart_hpc").is_dir() for mount in mounts)
