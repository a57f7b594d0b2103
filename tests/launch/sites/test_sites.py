"""Site files from the inventory of a cluster, and compared with one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rollart_hpc.config.load import load_site
from rollart_hpc.config.site import HardwareClass, SiteConfig
from rollart_hpc.launch import finding
from rollart_hpc.launch.sites.compare import compare
from rollart_hpc.launch.sites.describe import describe
from rollart_hpc.launch.slurm.inventory import Inventory, NodeKind, Partition, gpus_of, is_usable, minutes

CPU = NodeKind(64, 250.0, "", 0, 10, 10, ("10.0.0.1",))
H800 = NodeKind(128, 1900.5, "nvidia_h800_80gb", 8, 12, 11, ("10.0.0.2",))
H20 = NodeKind(128, 1900.0, "h20", 8, 4, 4, ("10.0.0.3",), 2)
ODD = NodeKind(32, 100.0, "", 4, 1, 1, ("10.0.0.4",))


def partition(name: str, *kinds: NodeKind, priority: int = 1, max_minutes: int = 1440) -> Partition:
    return Partition(
        name=name, is_up=True, is_default=False, priority=priority, max_minutes=max_minutes, max_nodes=0,
        allow_groups="ALL", allow_accounts="ALL", allow_qos="ALL", submit_hosts="ALL", kinds=kinds,
    )  # fmt: skip


def inventory(*partitions: Partition) -> Inventory:
    return Inventory("Big Cluster", "23.11.4", {}, {p.name: p for p in partitions}, ("none", "pmi2"))


PAPER = inventory(
    partition("all", CPU, H800, H20),
    partition("short", CPU, max_minutes=60),
    partition("normal", CPU),
    partition("train", H800),
    partition("urgent", H20, priority=9),
    partition("decode", H20),
)


def test_a_class_for_every_kind_from_the_plainest_partition(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(describe(PAPER))
    site = load_site(path)
    assert {name: c.partition for name, c in site.classes.items()} == {
        "cpu": "normal",
        "h800": "train",
        "h20": "decode",
    }
    assert site.serves == {"cpu": "cpu", "compute": "h800", "bandwidth": "h20"}
    own = site.classes["h800"]
    assert (own.gres, own.gpu, own.gpus, own.max_nodes) == ("nvidia_h800_80gb", "h800", 8, 12)
    assert {name: c.threads_per_core for name, c in site.classes.items()} == {"cpu": 1, "h800": 1, "h20": 2}
    assert site.network.control == ""
    assert "all (26 nodes)" in path.read_text()


def test_one_partition_of_unnamed_gpus_serves_everything(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(describe(inventory(partition("gpu", ODD, max_minutes=0))))
    site = load_site(path)
    assert site.serves == dict.fromkeys(("cpu", "compute", "bandwidth"), "gpu")
    assert (site.classes["gpu"].gres, site.classes["gpu"].gpus, site.classes["gpu"].max_minutes) == ("", 4, 0)


def test_what_was_written_compares_well(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(describe(PAPER))
    found = compare(load_site(path), PAPER)
    assert not finding.has_failed(found)
    assert [one.what for one in found if one.level == "warn"] == ["1 of 12 nodes of train are down or drained"]


def kind(gpu: str, gpus: int = 8) -> NodeKind:
    return NodeKind(64, 500.0, gpu, gpus, 2, 2, ("10.0.0.5",))


def test_every_type_of_gpu_is_a_class_of_its_own_and_slices_are_no_gpus(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    mixed = (kind("a100", 4), dataclasses.replace(kind("a100_1g.5gb", 14), is_counted=False), kind("1g.10gb", 7))
    zoo = inventory(partition("cpu", CPU), partition("gpu", *mixed), partition("games", kind("4090"), kind("2080ti")),
                    partition("old", kind("nvidia_a100-sxm4-40gb")))  # fmt: skip
    path.write_text(describe(zoo))
    site = load_site(path)
    assert {name: (c.gres, c.gpus, c.gpu) for name, c in site.classes.items() if c.gpus} == {
        "a100": ("a100", 4, "a100"),
        "nvidia_a100-sxm4-40gb": ("nvidia_a100-sxm4-40gb", 8, "a100"),
        "a100_1g.5gb": ("a100_1g.5gb", 14, ""),
        "gpu-1g.10gb": ("1g.10gb", 7, ""),
        "gpu-4090": ("4090", 8, ""),
        "gpu-2080ti": ("2080ti", 8, ""),
    }
    assert site.serves["compute"] == "a100" and zoo.partitions["gpu"].num_nodes == 4
    assert not [one for one in compare(site, zoo) if one.level in ("fail", "warn")]


def test_figures_of_a_whole_gpu_for_a_slice_and_an_open_choice_of_types_are_told() -> None:
    slices = inventory(partition("gpu", kind("a100", 4), kind("a100_1g.5gb", 14)))
    site = SiteConfig(launcher="slurm", classes={"x": HardwareClass(partition="gpu", gpus=4, max_minutes=60)})
    assert [one.fix for one in compare(site, slices) if one.level == "warn"] == ["classes.x.gres: a100"]
    site.classes["x"].gres, site.classes["x"].gpu = "a100_1g.5gb", "a100"
    assert ["which have other figures" in one.what for one in compare(site, slices) if one.level == "warn"] == [True]


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"partition": "trian"}, "train?"),
        ({"gres": "h20"}, "classes.h800.gres"),
        ({"gpus": 16}, "classes.h800.gpus"),
        ({"cpus": 200}, "classes.h800.cpus: 128"),
        ({"memory_gb": 2000.0}, "classes.h800.memory_gb: 1900.5"),
        ({"max_minutes": 0}, "classes.h800.max_minutes: 1440"),
        ({"max_nodes": 99}, "classes.h800.max_nodes: 12"),
    ],
)
def test_a_difference_comes_with_its_fix(changes: dict[str, object], fix: str) -> None:
    right = HardwareClass(partition="train", gres="nvidia_h800_80gb", gpu="h800", gpus=8, cpus=64, max_minutes=60)
    site = SiteConfig(launcher="slurm", classes={"h800": dataclasses.replace(right, **changes)})
    failed = [one for one in compare(site, PAPER) if one.level == "fail"]
    assert len(failed) == 1 and fix in failed[0].fix, failed


def test_cores_with_more_threads_than_the_site_says_are_told() -> None:
    site = SiteConfig(launcher="slurm", classes={"h20": HardwareClass(partition="decode", gpus=8, max_minutes=60)})
    assert [one.fix for one in compare(site, PAPER) if one.level == "fail"] == ["classes.h20.threads_per_core: 2"]
    site.classes["h20"].threads_per_core = 2
    assert not finding.has_failed(compare(site, PAPER))


def test_what_slurm_prints_is_understood() -> None:
    assert gpus_of("gpu:a100:4(S:0),gpu:a100:4(S:1),nvme:2") == {"a100": 8}
    assert gpus_of("gpu:8(IDX:0-7)") == {"": 8}
    assert gpus_of("(null)") == gpus_of("") == gpus_of("shard:a100:32") == {}
    assert gpus_of("craynetwork:4,gpu:tesla:2") == {"tesla": 2}
    assert gpus_of("gpu:4090:8") == {"4090": 8} and gpus_of("gpu:2080ti:8(S:0-1)") == {"2080ti": 8}
    assert gpus_of("gpu:1g.10gb:7") == {"1g.10gb": 7} and gpus_of("gpu:tesla") == {"tesla": 1}
    assert gpus_of("gpu:a100:4,shard:a100:16,gpu:a100_1g.5gb:14") == {"a100": 4, "a100_1g.5gb": 14}
    assert [minutes(text) for text in ("2-00:00:00", "01:30:00", "UNLIMITED", "infinite")] == [2880, 90, 0, 0]


@pytest.mark.parametrize(
    ("usable", "states"),
    [
        (True, ("IDLE", "MIXED", "IDLE+CLOUD", "ALLOCATED+COMPLETING", "IDLE+PLANNED")),
        (True, ("IDLE+CLOUD+POWERED_DOWN", "IDLE+POWERING_DOWN", "MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", "IDLE~")),
        (False, ("IDLE+DRAIN", "DOWN*", "DOWN*+DRAIN", "IDLE*", "ALLOCATED+NOT_RESPONDING", "IDLE+FAIL")),
        (False, ("DOWN+CLOUD+POWERED_DOWN", "IDLE+DRAIN+POWERED_DOWN", "FUTURE", "IDLE+MAINT")),
    ],
)
def test_nodes_that_sleep_are_usable_and_bad_ones_are_not(usable: bool, states: tuple[str, ...]) -> None:
    assert [is_usable(state) for state in states] == [usable] * len(states)
