"""Nodes as their agents come, leave and replace each other."""

from __future__ import annotations

import pytest

from rollart_hpc.errors import UserError
from rollart_hpc.launch.place import Came, Leaving, Left
from rollart_hpc.launch.plan import Proc
from rollart_hpc.launch.slurm.roster import Roster
from rollart_hpc.wire.messages import Offer


def offer(host: str, *nodes: str, is_guest: bool = False) -> Offer:
    return Offer(host, list(nodes), "7", "", "", [], 2, 4.0, is_guest)


def guest(offer: Offer, node: str) -> tuple[Proc, ...]:
    if offer.host == "small":
        raise UserError("too small", "")
    return (Proc(f"engine-{node}", "engine", "compute", node),)


@pytest.fixture
def roster() -> Roster:
    return Roster({"cpu-0": "n1", "cpu-1": "n1"}, guest)


def test_nodes_of_the_own_job_are_known_by_host_and_share_its_fate(roster: Roster) -> None:
    assert not roster.has("cpu-0")
    assert roster.arrived("a", offer("n1")) == [Came("cpu-0"), Came("cpu-1")]
    assert roster.has("cpu-1") and roster.is_home("cpu-1") and roster.agent_of("cpu-1") == "a"
    assert [change.node for change in roster.warned("a")] == ["cpu-0", "cpu-1"] and roster.has("cpu-0")


def test_a_node_of_another_job_takes_nothing_new_once_it_is_warned(roster: Roster) -> None:
    assert roster.arrived("a", offer("n5", "h20-0")) == [Came("h20-0")]
    assert not roster.is_home("h20-0")
    assert [type(change) for change in roster.warned("a")] == [Leaving]
    assert not roster.has("h20-0") and roster.agent_of("h20-0") == "a", "its processes can still be ended"
    assert roster.warned("a") == []
    assert roster.departed("a", "gone") == [Left("h20-0", "gone")]
    assert roster.arrived("b", offer("n6", "h20-0")) == [Came("h20-0")] and roster.has("h20-0")


def test_a_job_that_starts_again_takes_its_node_over(roster: Roster) -> None:
    roster.arrived("a", offer("n5", "h20-0"))
    assert roster.replaced("b", offer("n6", "h20-0")) == {"a"}
    roster.departed("a", "its job has started again")
    roster.arrived("b", offer("n6", "h20-0"))
    assert roster.departed("a", "silent") == [] and roster.agent_of("h20-0") == "b"


def test_guests_bring_what_runs_there(roster: Roster) -> None:
    (came,) = roster.arrived("guest-x-1", offer("x", is_guest=True))
    assert came == Came("guest-x-1", guest(offer("x"), "guest-x-1"))
    with pytest.raises(UserError, match="too small"):
        roster.arrived("guest-small-1", offer("small", is_guest=True))
    assert not roster.has("guest-small-1")
