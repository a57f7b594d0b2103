"""Layouts of a development cluster: the ones that come with it, larger ones, and mistakes in one's own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rollart_hpc.devcluster.topology import read_topology, templates
from rollart_hpc.errors import UserError


def test_eight_nodes_with_ports_of_their_own() -> None:
    nodes = read_topology().nodes
    assert [node.name for node in nodes if node.gpus == 8] == ["h800n1", "h800n2", "h20n1", "h20n2"]
    assert len({node.port for node in nodes}) == len(nodes) == 8


def test_a_mixed_layout_has_odd_names_and_nodes_that_can_be_taken_back() -> None:
    topology = read_topology("mixed")
    partitions = {partition.name: partition for partition in topology.partitions}
    assert {"fat.cpu", "io-cpu_2", "h800", "h20", "l40s"} < partitions.keys()
    spot, owner = partitions["spot"], partitions["l40s"]
    assert (spot.nodes, spot.options["PreemptMode"]) == ("h20n[1-2],l40sn[1-2]", "REQUEUE")
    assert int(spot.options["PriorityTier"]) < int(owner.options["PriorityTier"])


@pytest.mark.parametrize("total", [3, 10, 200])
def test_a_larger_cluster_keeps_the_proportions(total: int) -> None:
    topology = read_topology("default", total)
    counts = Counter(node.name.rstrip("0123456789") for node in topology.nodes)
    assert counts.total() == total == len({node.port for node in topology.nodes})
    assert counts["cpun"] >= counts["h800n"] >= counts["h20n"] >= 1
    assert total < 200 or counts == {"cpun": 100, "h800n": 50, "h20n": 50}
    assert {p.nodes for p in topology.partitions} >= {f"h20n[1-{counts['h20n']}]", "ALL"}


def test_too_few_nodes_for_the_kinds_are_refused() -> None:
    with pytest.raises(UserError, match="from 3"):
        read_topology("default", 2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('gpu = "h20"', 'gqu = "h20"', "unknown key 'gqu'"),
        ('prefix = "h20n"', 'prefix = "cpun"', "must be unique"),
        ('gpu = "h20"', 'gpu = ""', "both or neither"),
        ('nodes = ["h20n"]', 'nodes = ["h30n"]', "no nodes 'h30n'"),
        ('name = "h20"', 'name = "h 20"', "can't contain 'h 20'"),
        ("[[partitions]]", "[partitions", "no layout"),
    ],
)
def test_mistakes_in_a_layout_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    text = (templates() / "layouts" / "default.toml").read_text()
    path.write_text(text)
    assert len(read_topology(str(path)).nodes) == 8
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        read_topology(str(path))


def test_an_unknown_layout_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="default, mixed"):
        read_topology("nope")
