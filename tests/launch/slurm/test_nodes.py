"""Which nodes are left out, with a sinfo that says what it is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rollart_hpc.config.load import load_site
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.nodes import excluded, note_nodes
from rollart_hpc.launch.slurm.requeue import requeue
from rollart_hpc.rundir import RunDir

Nodes = Callable[[str], None]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run").create()


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Sets what sinfo says of n1, n2, ... ; what scontrol is asked lies in `scontrol.asked`."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "sinfo").write_text(f"#!/bin/sh\n. '{tmp_path}/nodes'\n")
    (bin_ / "scontrol").write_text(f"#!/bin/sh\necho \"$@\" >> '{tmp_path}/scontrol.asked'\n")
    for command in bin_.iterdir():
        command.chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_), prepend=":")

    def put(states: str) -> None:
        """e.g. "drained idle" """
        rows = [rf"printf 'n{i}\037{state}\037why\n'" for i, state in enumerate(states.split(), 1)]
        (tmp_path / "nodes").write_text("\n".join(rows))

    return put


def test_a_node_is_left_out_while_it_is_bad_and_no_longer(run: RunDir, nodes: Nodes) -> None:
    site, slurm, hosts = load_site("dev"), Slurm(), ["n1", "n2"]
    site.classes["cpu"].exclude = "broken[1-2]"
    nodes("mixed idle")
    assert not note_nodes(run, slurm, hosts, print)
    assert excluded(run, site) is None and record.read(run) == []
    nodes("draining idle~")
    assert note_nodes(run, slurm, hosts, print)
    assert excluded(run, site) == ["broken[1-2]", "n1"]
    nodes("drained down*")
    assert note_nodes(run, slurm, hosts, print) and not note_nodes(run, slurm, hosts, print)
    assert excluded(run, site) == ["broken[1-2]", "n1", "n2"]
    nodes("idle down*")
    assert not note_nodes(run, slurm, (), print), "those left out are looked at, whoever asks"
    assert excluded(run, site) == ["broken[1-2]", "n2"]
    nodes("down mixed")
    assert note_nodes(run, slurm, hosts, print), "it was lost once more"
    assert record.bad_hosts(record.read(run)) == ["n1"]


def test_what_was_known_holds_while_slurm_does_not_answer(run: RunDir, nodes: Nodes, tmp_path: Path) -> None:
    record.add(run, record.BadNode("n1", "down"))
    (tmp_path / "nodes").write_text("exit 1")
    said: list[str] = []
    assert not note_nodes(run, Slurm(), ["n2"], said.append)
    assert record.bad_hosts(record.read(run)) == ["n1"] and "unknown" in said[0]


@pytest.mark.parametrize(
    ("exclude", "asked"), [(None, ""), ([], "update JobId=12 ExcNodeList=\n"), (["n1", "n2"], "ExcNodeList=n1,n2\n")]
)
def test_a_requeue_sets_the_nodes_left_out_and_takes_back_old_ones(
    exclude: list[str] | None, asked: str, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process lives on
    requeue(Slurm(), 12, exclude, print)
    said = (tmp_path / "scontrol.asked").read_text()
    assert said.startswith("requeue 12\n") and said.endswith(asked) and said.count("\n") == 1 + bool(asked)
