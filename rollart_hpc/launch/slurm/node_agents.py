"""Which agent stands for which node. Owns that mapping; starts nothing and calls no Slurm.

    nodes of the run's own job     known by host: the job's allocation says which host is which node
    nodes of other jobs            their agents name the nodes they stand for
    guests                         nodes that are not in the plan, named after their agents

An agent that comes for a node takes it over from the one before: Slurm may have started its job again elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rollart_hpc.launch.place import Came, Change, Leaving, Left
from rollart_hpc.launch.plan import Proc
from rollart_hpc.wire.messages import Offer

Invite = Callable[[Offer, str], tuple[Proc, ...]]  # (offer, name of the node) -> what runs there; raises UserError


class Known(NamedTuple):
    offer: Offer
    nodes: list[str]
    is_guest: bool


class NodeAgents:
    def __init__(self, home: Mapping[str, str], invite: Invite) -> None:
        """`home`: host by node, of the run's own job."""
        self._home, self._invite = home, invite
        self._agents: dict[str, str] = {}  # by node
        self._known: dict[str, Known] = {}  # by agent
        self._leaving: set[str] = set()  # nodes

    def agent_of(self, node: str) -> str:
        """Empty if the node is not there."""
        return self._agents.get(node, "")

    def agent_at(self, host: str) -> str:
        """That of a host of the run's own job; empty if there is none."""
        return next((self.agent_of(node) for node, known in self._home.items() if known == host), "")

    def has(self, node: str) -> bool:
        return node in self._agents and node not in self._leaving

    def is_home(self, node: str) -> bool:
        return node in self._home

    def offer_of(self, agent: str) -> Offer | None:
        known = self._known.get(agent)
        return known.offer if known else None

    def arrived(self, agent: str, offer: Offer) -> list[Change]:
        """Raises `UserError` if there is no work for a guest. Call `replaced` before."""
        guests: tuple[Proc, ...] = ()
        if offer.is_guest:
            nodes, guests = [agent], self._invite(offer, agent)
        elif offer.nodes:
            nodes = list(offer.nodes)
        else:
            nodes = [node for node, host in self._home.items() if host == offer.host]
        self._known[agent] = Known(offer, nodes, offer.is_guest)
        self._agents |= dict.fromkeys(nodes, agent)
        self._leaving.difference_update(nodes)
        return [Came(node, guests) for node in nodes]

    def replaced(self, agent: str, offer: Offer) -> set[str]:
        """Agents whose nodes this one takes over."""
        return {self._agents[node] for node in offer.nodes if node in self._agents} - {agent}

    def departed(self, agent: str, reason: str) -> list[Change]:
        known = self._known.pop(agent, None)
        lost = [node for node in (known.nodes if known else []) if self._agents.get(node) == agent]
        for node in lost:
            del self._agents[node]
            self._leaving.discard(node)
        return [Left(node, reason) for node in lost]

    def warned(self, agent: str) -> list[Change]:
        """Of a node that the run can do without: nothing is started there anymore."""
        known = self._known.get(agent)
        nodes = [node for node in (known.nodes if known else []) if node not in self._leaving]
        self._leaving.update(node for node in nodes if not self.is_home(node))
        return [Leaving(node, "it was warned of its end") for node in nodes]
