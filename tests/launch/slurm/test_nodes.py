"""Which nodes are bad or avoided, with a sinfo that says what it is told."""

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


def began(*hosts: str) -> record.Began:
    return record.Began(12, 0, -1, [record.Part(12, "h800", "gpu", list(hosts), 8)])


def test_what_slurm_does_not_use_is_known_and_not_excluded(run: RunDir, nodes: Nodes) -> None:
    """Nobody would take it from the list while the job waits for its repair."""
    site, slurm, hosts = load_site("dev"), Slurm(), ["n1", "n2"]
    site.classes["cpu"].exclude = "broken[1-2]"
    nodes("mixed idle")
    assert not note_nodes(run, slurm, hosts, print)
    assert excluded(run, site) is None and record.read(run) == []
    nodes("draining idle~")
    assert note_nodes(run, slurm, hosts, print)
    nodes("drained down*")
    assert note_nodes(run, slurm, hosts, print) and not note_nodes(run, slurm, hosts, print)
    assert record.bad_hosts(record.read(run)) == ["n1", "n2"]
    assert excluded(run, site) == ["broken[1-2]"]
    nodes("idle down*")
    assert not note_nodes(run, slurm, (), print), "bad nodes are looked at, whoever asks"
    nodes("down mixed")
    assert note_nodes(run, slurm, hosts, print), "it was lost once more"
    assert record.bad_hosts(record.read(run)) == ["n1"]
    assert excluded(run, site) == ["broken[1-2]"]


def lose(run: RunDir, nodes: Nodes, states: str, times: int) -> None:
    for _ in range(times):
        for said in (states, states.replace("down", "idle").replace("drained", "idle")):
            nodes(said)
            note_nodes(run, Slurm(), [f"n{i}" for i in range(1, 1 + len(states.split()))], print)


def test_a_node_that_fails_again_and_again_is_avoided_while_others_are_enough(run: RunDir, nodes: Nodes) -> None:
    site = load_site("dev")
    record.add(run, began("n1", "n2"))
    lose(run, nodes, "down idle idle", 1)
    assert excluded(run, site) == []
    lose(run, nodes, "down idle idle", 1)
    assert excluded(run, site) == ["n1"]
    nodes("idle idle drained")
    note_nodes(run, Slurm(), (), print)
    assert excluded(run, site) == [], "the job needs two nodes, and only n2 would be left"
    nodes("idle idle idle")
    note_nodes(run, Slurm(), (), print)
    assert excluded(run, site) == ["n1"]


def test_a_node_that_was_drained_is_never_avoided(run: RunDir, nodes: Nodes) -> None:
    record.add(run, began("n1"))
    lose(run, nodes, "drained idle idle", 3)
    assert excluded(run, load_site("dev")) == []


def test_what_was_known_holds_while_slurm_does_not_answer(run: RunDir, nodes: Nodes, tmp_path: Path) -> None:
    record.add(run, record.BadNode("n1", "down"))
    (tmp_path / "nodes").write_text("exit 1")
    said: list[str] = []
    assert not note_nodes(run, Slurm(), ["n2"], said.append)
    assert record.bad_hosts(record.read(run)) == ["n1"] and "unknown" in said[0]


@pytest.mark.parametrize(
    ("exclude", "asked"), [(None, ""), ([], "update JobId=12 ExcNodeList=\n"), (["n1", "n2"], "ExcNodeList=n1,n2\n")]
)
def test_a_requeue_sets_the_excluded_nodes_and_takes_back_old_ones(
    exclude: list[str] | None, asked: str, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process lives on
    requeue(Slurm(), 12, exclude, print)
    said = (tmp_path / "scontrol.asked").read_text()
    assert said.startswith("requeue 12\n") and said.endswith(asked) and said.count("\n") == 1 + bool(asked)
