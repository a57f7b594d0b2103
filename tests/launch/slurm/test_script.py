"""The batch script against golden files. After a wanted change: ROLLART_WRITE_GOLDEN=1 pytest, then read the diff."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from rollart_hpc.config.load import load, load_site
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.slurm import script as scripts
from rollart_hpc.launch.slurm.script import job_name, render_script
from rollart_hpc.rundir import RunDir

GOLDEN = Path(__file__).parent.parent / "golden"
RUN = RunDir("/shared/runs/quick start 100%")
PAPER = [
    "trainer.ranks=32", "pools.compute.engines=16", "pools.compute.tensor_parallel=4", "pools.bandwidth.engines=8",
    "pools.bandwidth.tensor_parallel=4", "env.workers=64", "job.account=rl", "job.time_minutes=600",
]  # fmt: skip


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/rollart/bin/python")
    monkeypatch.setattr(scripts, "_is_installed", lambda parent: True)


def render(site_name: str, *overrides: str, run: str = "quickstart") -> str:
    site, config = load_site(site_name), load(run, overrides, site_name)
    return render_script(make_plan(config, site), config, site, RUN)


@pytest.mark.parametrize(("site", "overrides"), [("dev", []), ("single", []), ("h800-h20", PAPER)])
def test_the_script_is_the_golden_one(site: str, overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    path = GOLDEN / f"{site}.sh"
    text = render(site, *overrides)
    if os.environ.get("ROLLART_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_a_run_with_three_gpu_classes_is_the_golden_one() -> None:
    path = GOLDEN / "three-classes.sh"
    text = render("three-classes", run="three-classes")
    if os.environ.get("ROLLART_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    assert text.count("--exclusive") == 1 and "--gres=gpu:l40s:4" in text.partition("--partition=l40s")[2]


def test_options_of_site_class_and_run(tmp_path: Path) -> None:
    site = tmp_path / "s.yaml"
    site.write_text(
        "base: dev\naccount: all\nexclude: cpun1\nsbatch: {exclusive: true, nice: 5}\nmail_type: END\n"
        "network: {env: {NCCL_IB_HCA: 'mlx5 0'}}\npython: /opt/my python/bin/python\nprologue: |\n  module load cuda\n"
        "classes: {h20: {account: other, constraint: 'a&b', sbatch: {nice: false}}}\n"
    )
    text = render(str(site), "job.qos=high", "job.comment=it's mine", "job.sbatch={licenses: fs}")
    cpu, h800, h20 = (part.splitlines() for part in text.split("#SBATCH hetjob"))
    for part in (cpu, h800, h20):
        assert {"#SBATCH --qos=high", "#SBATCH --exclusive", "#SBATCH --licenses=fs"} <= set(part)
        comment = next(line for line in part if "--comment" in line)
        assert shlex.split(comment, comments=False)[1] == "--comment=it's mine"
    assert "#SBATCH --account=all" in h800 and "#SBATCH --nice=5" in h800
    assert "#SBATCH --account=other" in h20 and not any("--nice" in line for line in h20)
    assert "#SBATCH --constraint='a&b'" in h20 and not any("--constraint" in line for line in h800)
    assert ["#SBATCH --mail-type=END" in part for part in (cpu, h800, h20)] == [True, False, False]
    assert "export NCCL_IB_HCA='mlx5 0'\nmodule load cuda\nexec '/opt/my python/bin/python' -P -m" in text


def test_no_line_can_be_added_through_a_value() -> None:
    text = render("dev", 'job.comment="x\\n#SBATCH --uid=root"')
    assert not any(line.startswith("#SBATCH --uid") for line in text.splitlines())


def test_names_differ_between_runs_and_not_within_one() -> None:
    config = load("quickstart")
    assert job_name(config, RunDir("/a")) == job_name(config, RunDir("/a")) != job_name(config, RunDir("/b"))
