from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rollart_hpc.config import packaged
from rollart_hpc.config.load import load, load_all, load_site
from rollart_hpc.config.resolved import read_site, write_resolved
from rollart_hpc.config.site import Options
from rollart_hpc.errors import ConfigError, UserError
from rollart_hpc.hardware import GPUS

Write = Callable[[str, str], Path]
SLURM = "launcher: slurm\nclasses: {a: {partition: p, cpus: 4}}\n"


def problems(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    return caught.value.problems


@pytest.mark.parametrize("name", packaged.names("sites"))
def test_every_packaged_site_is_good_and_can_be_read_back(name: str, tmp_path: Path) -> None:
    site = load_site(name)
    write_resolved(tmp_path / "site.yaml", site)
    assert read_site(tmp_path / "site.yaml") == site


def test_the_paper_s_testbed() -> None:
    site = load_site("h800-h20")
    assert [site.serving(need) for need in ("cpu", "compute", "bandwidth")] == ["cpu", "h800", "h20"]
    assert site.gpu("h800") == GPUS["h800"] and site.gpu("cpu").tflops == 0
    sizes = {name: own.gpus * own.max_nodes for name, own in site.classes.items()}
    assert sizes == {"cpu": 0, "h800": 96, "h20": 32}


def test_one_class_serves_every_need(write: Write) -> None:
    site = load_site(write("s.yaml", SLURM))
    assert {site.serving(need) for need in ("cpu", "compute", "bandwidth")} == {"a"}


def test_a_class_s_word_counts_more_than_the_site_s(write: Write) -> None:
    text = "account: all\nqos: q\nsbatch: {nice: 5, licenses: fs}\nlauncher: slurm\n"
    text += "classes: {a: {partition: p, account: own, sbatch: {nice: 7}}}\n"
    options = load_site(write("s.yaml", text)).options("a")
    assert options == Options(account="own", qos="q", sbatch={"nice": 7, "licenses": "fs"})


def test_every_problem_of_a_site_at_once(write: Write) -> None:
    text = "launcher: slurm\nserves: {cpu: c}\nsbatch: {time: 5, -J: x}\nnetwork: {control: 10.0.0.0/99, ports: 1-2}\n"
    found = problems(write("s.yaml", text + "classes: {a: {gpu: b200, gpus: 8}, b: {partition: p, gres: x}}\n"))
    assert [line.split(":")[0] for line in found] == [
        "sbatch.time", "sbatch.-J", "network.control", "network.ports", "classes.a.partition", "classes.a.gpu",
        "classes.b.gpus", "serves.cpu",
    ]  # fmt: skip
    assert "there is no class 'c'; legal: a, b" in found[-1]


def test_containers_and_steps_are_checked(write: Write) -> None:
    text = SLURM + "srun: {gres: gpu:1, cpu-bind: none}\ncontainer: {kind: pyxis}\n"
    found = problems(write("s.yaml", text))
    assert [line.split(":")[0] for line in found] == ["srun.gres", "container.image"]
    text = "launcher: slurm\ncontainer: {image: /a.sif}\nclasses:\n  a: {partition: p, max_gpus: 4}\n"
    text += "  b: {partition: p, gpus: 8, max_gpus: 4, whole_nodes: true, container: {kind: podman}}\n"
    assert "'podman' is not a choice" in problems(write("s.yaml", text))[0]
    text = text.replace("podman", "apptainer, image: /a.sif, mounts: [data, /data]")
    found = problems(write("s.yaml", text))
    assert [line.split(":")[0] for line in found] == [
        "container.kind", "classes.a.max_gpus", "classes.b.max_gpus", "classes.b.container.mounts",
    ]  # fmt: skip


def test_a_class_with_a_container_of_its_own(write: Write) -> None:
    text = "launcher: slurm\nsrun: {cpu-bind: none, mem-bind: local}\ncontainer: {kind: pyxis, image: all.sqsh}\n"
    text += "classes:\n  a: {partition: p, srun: {mem-bind: false}}\n"
    text += "  b: {partition: p, container: {kind: apptainer, image: b.sif, mounts: /data}}\n"
    site = load_site(write("s.yaml", text))
    assert site.options("a").container.image == "all.sqsh"
    assert site.options("a").srun == {"cpu-bind": "none", "mem-bind": False}
    assert (site.options("b").container.image, site.options("b").container.mounts) == ("b.sif", ["/data"])


def test_values_of_maps_have_types(write: Write) -> None:
    found = problems(write("s.yaml", SLURM + "network: {env: {A: 1}}\nserves: {gpu: a}\n"))
    assert found[0].startswith("network.env.A: 1 is an integer") and found[1].startswith("serves.gpu: unknown name")


def test_a_user_s_site_is_found_by_name_before_a_packaged_one(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write("rollart-hpc/sites/mine.yaml", SLURM)
    write("rollart-hpc/sites/dev.yaml", "base: dev\naccount: me\nclasses: {h20: {max_nodes: 1}}\n")
    assert load_site("mine").classes["a"].partition == "p"
    dev = load_site("dev")
    assert (dev.account, dev.classes["h20"].max_nodes, dev.classes["h20"].partition) == ("me", 1, "h20")
    assert {"mine", "dev", "local"} <= set(packaged.names("sites"))


def test_a_site_builds_on_another(write: Write) -> None:
    write("one.yaml", SLURM)
    assert load_site(write("two.yaml", "base: ./one.yaml\nqos: high\n")).options("a").qos == "high"
    with pytest.raises(UserError, match="is this file"):
        load_site(write("three.yaml", "base: ./three.yaml\n"))


def test_variables_count_more_than_the_run_file_and_less_than_the_command_line(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write("r.yaml", "tasks: {frozenlake: {}}\njob: {account: file, qos: file}\n")
    monkeypatch.setenv("SBATCH_ACCOUNT", "variable")
    monkeypatch.setenv("SBATCH_RESERVATION", "variable")
    job = load(run, ["job.reservation=line"]).job
    assert (job.account, job.qos, job.reservation) == ("variable", "file", "line")


def test_the_site_is_the_command_line_s_else_the_run_file_s(write: Write) -> None:
    run = write("r.yaml", "tasks: {frozenlake: {}}\nsite: dev\n")
    assert [load_all(run, site=site).site.name for site in (None, "single")] == ["dev", "single"]
    assert load_all("quickstart", else_site="single").site.name == "single"


def test_free_options_of_a_run_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"job\.sbatch\.partition: set by the plan"):
        load("quickstart", ["job.sbatch.partition=x"])


def test_other_clusters_are_refused_because_nothing_would_find_the_job_again() -> None:
    with pytest.raises(ConfigError, match=r"job\.sbatch\.clusters: jobs go to the cluster of this login node only"):
        load("quickstart", ["job.sbatch.clusters=other"])


def test_the_quickstart_asks_a_cluster_for_an_hour() -> None:
    assert load("quickstart").job.time_minutes == 60
