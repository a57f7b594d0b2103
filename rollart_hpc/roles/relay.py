"""A node's relay: keeps the newest weights in shared memory and passes them on to other nodes."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from rollart_hpc.observe.trace import Tracer
from rollart_hpc.roles.start import Start, connect, data_address, open_trace, run_role, seated
from rollart_hpc.wire.link import Link
from rollart_hpc.wire.messages import Stop, WhoAreYou

if TYPE_CHECKING:
    from rollart_hpc.weights.mpi import MpiWorld
    from rollart_hpc.weights.relay import Relay
    from rollart_hpc.weights.store import NodeStore

log = logging.getLogger(__name__)


def main(start: Start) -> None:
    world = None
    if start.seats:
        from rollart_hpc.weights.mpi import MpiWorld

        world = MpiWorld(start.incarnation, start.config.timeouts.start_s)
        start = seated(start, world.rank)
        log.info("rank %d of the %d relays of an MPI world, pid %d", world.rank, world.size, os.getpid())
    _run(start, world)
    if world is not None:
        world.close()


def _run(start: Start, world: MpiWorld | None) -> None:
    from rollart_hpc.weights.relay import Relay
    from rollart_hpc.weights.store import NodeStore

    host = data_address(start)
    store = NodeStore(start.run.store_root, start.node)
    store.claim(start.incarnation)
    link = connect(start)
    with open_trace(start) as tracer:
        relay = Relay(store, host, start.config.weights.deadline_s, link.send, tracer, world)
        try:
            _serve(link, relay, tracer)
        except BaseException:  # keep the store: the next relay on this node continues with it
            link.close()
            relay.close()
            raise
        link.close()
        _leave(relay, store, start.incarnation)


def _leave(relay: Relay, store: NodeStore, incarnation: str) -> None:
    """The run is over. Free the memory at once, and again after transfers in flight have ended."""
    is_mine = store.is_owned_by(incarnation)  # otherwise a newer relay of this node uses it
    if is_mine:
        store.remove()
    relay.close()
    if is_mine:
        store.remove()


def _serve(link: Link, relay: Relay, tracer: Tracer) -> None:
    relay.announce()
    while True:
        received = link.recv()
        assert received is not None, "recv without a timeout returns a message"
        message, _ = received
        tracer.set_offset(link.clock_offset_s)
        if isinstance(message, Stop):
            log.info("stopping: %s", message.reason)
            return
        if isinstance(message, WhoAreYou):
            relay.announce()
        else:
            relay.handle(message)


if __name__ == "__main__":
    run_role("relay", main)
