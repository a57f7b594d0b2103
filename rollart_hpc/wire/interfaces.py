"""The addresses of this node. Owns how the name of an interface or a network becomes an address to bind to.

Each process resolves it on its own node: interface names differ between nodes, and a node has one address per network.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator

from rollart_hpc.errors import SiteError

_SIOCGIFADDR = 0x8915
_PROBE = ("192.0.2.1", 9)  # reserved for documentation; nothing is sent there


def address_of(interface: str) -> str:
    """This node's IPv4 address on an interface (`ib0`) or in a network (`10.1.0.0/16`); empty: `own_address`."""
    if not interface:
        return own_address()
    known = dict(_interfaces())
    if "/" not in interface:
        found = known.get(interface)
    else:
        network = ipaddress.ip_network(interface, strict=False)
        found = next((address for address in known.values() if ipaddress.ip_address(address) in network), None)
    if found is None:
        listed = ", ".join(f"{name} {address}" for name, address in known.items())
        raise SiteError(
            f"{socket.gethostname()} has no address on {interface!r}; it has: {listed}",
            "correct network.control or network.data in the site file",
        )
    return found


def own_address() -> str:
    """The address at which other nodes reach this host: that of its name, else of its default route, else loopback."""
    for address in (_address_of_name(), _default_address()):
        if address and not ipaddress.ip_address(address).is_loopback:
            return address
    return "127.0.0.1"


def _address_of_name() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def _default_address() -> str:
    try:
        return address_facing(*_PROBE)
    except OSError:
        return ""


def address_facing(host: str, port: int) -> str:
    """This node's address on the route to `host`: the one to bind to. Sends nothing."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_with(address: str) -> str:
    """The name of the interface with this address, as gloo and NCCL need it. Empty if there is none."""
    return next((name for name, known in _interfaces() if known == address), "")


def _interfaces() -> Iterator[tuple[str, str]]:
    """Interfaces that are up and have an IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            yield name, socket.inet_ntoa(answer[20:24])
