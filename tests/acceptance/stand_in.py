"""A stand-in for a worker: joins the real controller and answers its messages without doing the work. No torch.

    python -m tests.acceptance.stand_in ROLE [arguments of a role]

An engine that has installed a version leaves a file in RUN_DIR/installed.
"""

from __future__ import annotations

import sys

from rollart_hpc.files import make_directory
from rollart_hpc.roles.start import Start, connect, run_role
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.link import Link

INSTALLED = "installed"


def answer(start: Start, link: Link, message: ms.AnyMessage) -> None:
    if isinstance(message, ms.Install):
        (make_directory(start.run.path / INSTALLED) / start.name).touch()
        link.send(ms.Installed(message.attempt, message.version, 0, 0.0, 0.0))
    elif isinstance(message, ms.TransferOffer):
        link.send(ms.TransferReady(message.epoch, "127.0.0.1", 1, ""))
        link.send(ms.TransferSent(message.epoch, 0, 0.0, "gloo"))
    elif isinstance(message, (ms.Adopt, ms.TransferJoin)):
        link.send(ms.Held(message.attempt, message.version, 0, 0.0))


def work(start: Start) -> None:
    if start.role == "trainer" and start.rank > 0:
        start.run.path.joinpath(f"{start.name}.up").touch()
        sys.stdin.read()
        return
    link = connect(start, capacity=64, version=0 if start.role == "trainer" else -1)
    if start.role == "trainer":
        link.send(ms.Published(start.attempt, 0, 0, 0.0))
        link.send(ms.BatchWanted(0))
    while True:
        received = link.recv()
        if received is None or isinstance(received[0], ms.Stop):
            return link.close()
        answer(start, link, received[0])


if __name__ == "__main__":
    role = sys.argv.pop(1)
    run_role(role, work)  # type: ignore[arg-type]
