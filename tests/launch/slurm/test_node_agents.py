"""Nodes as their agents come, leave and replace each other."""

from __future__ import annotations

import pytest

from rollart_hpc.errors import UserError
from rollart_hpc.launch.place import Came, Leaving, Left
from rollart_hpc.launch.plan import Proc
from rollart_hpc.launch.slurm.node_agents import NodeAgents
from rollart_hpc.wire.messages import Offer


def offer(host: str, *nodes: str, is_guest: bool = False) -> Offer:
    return Offer(host, list(nodes), "7", "", "", [], 2, 4.0, is_guest)


def guest(offer: Offer, node: str) -> tuple[Proc, ...]:
    if offer.host == "small":
        raise UserError("too small", "")
    return (Proc(f"engine-{node}", "engine", "compute", node),)


@pytest.fixture
def agents() -> NodeAgents:
    return NodeAgents({"cpu-0": "n1", "cpu-1": "n1"}, guest)


def test_nodes_of_the_own_job_are_known_by_host_and_share_its_fate(agents: NodeAgents) -> None:
    assert not agents.has("cpu-0")
    assert agents.arrived("a", offer("n1")) == [Came("cpu-0"), Came("cpu-1")]
    assert agents.has("cpu-1") and agents.is_home("cpu-1") and agents.agent_of("cpu-1") == "a"
    assert [change.node for change in agents.warned("a")] == ["cpu-0", "cpu-1"] and agents.has("cpu-0")


def test_a_node_of_another_job_takes_nothing_new_once_it_is_warned(agents: NodeAgents) -> None:
    assert agents.arrived("a", offer("n5", "h20-0")) == [Came("h20-0")]
    assert not agents.is_home("h20-0")
    assert [type(change) for change in agents.warned("a")] == [Leaving]
    assert not agents.has("h20-0") and agents.agent_of("h20-0") == "a", "its processes can still be ended"
    assert agents.warned("a") == []
    assert agents.departed("a", "gone") == [Left("h20-0", "gone")]
    assert agents.arrived("b", offer("n6", "h20-0")) == [Came("h20-0")] and agents.has("h20-0")


def test_a_job_that_starts_again_takes_its_node_over(agents: NodeAgents) -> None:
    agents.arrived("a", offer("n5", "h20-0"))
    assert agents.replaced("b", offer("n6", "h20-0")) == {"a"}
    agents.departed("a", "its job has started again")
    agents.arrived("b", offer("n6", "h20-0"))
    assert agents.departed("a", "silent") == [] and agents.agent_of("h20-0") == "b"


def test_guests_bring_what_runs_there(agents: NodeAgents) -> None:
    (came,) = agents.arrived("guest-x-1", offer("x", is_guest=True))
    assert came == Came("guest-x-1", guest(offer("x"), "guest-x-1"))
    with pytest.raises(UserError, match="too small"):
        agents.arrived("guest-small-1", offer("small", is_guest=True))
    assert not agents.has("guest-small-1")
