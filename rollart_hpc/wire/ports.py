"""The ports that processes of a run listen on: in the range of the site (`network.ports`), else any free one.

Owns the variable that carries the range to every process of a role, including those that its libraries start.
`library_ports` holds libraries to it that choose ports themselves.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterable

from rollart_hpc.errors import SiteError

PORTS_VARIABLE = "ROLLART_PORTS"
_WIDEN = "widen network.ports in the site file"


def in_range(ports: str) -> Iterable[int]:
    """The ports of a range `LOW-HIGH` in random order, because processes of a node choose at the same time; 0 = any."""
    if not ports:
        return [0]
    low, high = (int(port) for port in ports.split("-"))
    return random.sample(range(low, high + 1), high + 1 - low)


def listen_tcp(host: str, ports: str | None = None) -> socket.socket:
    """A socket that listens on a free port. `ports`: a range; None = that of this process."""
    chosen = os.environ.get(PORTS_VARIABLE, "") if ports is None else ports
    problem = ""
    try:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        raise SiteError(f"can't listen on {host}: {error}", "correct network in the site file") from None
    for port in in_range(chosen):
        try:
            return socket.create_server((host, port), family=family)
        except OSError as error:
            problem = error.strerror or str(error)
    where = f"{host}, ports {chosen}" if chosen else host
    raise SiteError(f"can't listen on {where}: {problem}", _WIDEN if chosen else "correct network in the site file")


def free_port(host: str) -> int:
    """For programs that need a number. It is not reserved until it is used."""
    with listen_tcp(host) as probe:
        return int(probe.getsockname()[1])
