"""The addresses of this node. Owns how a name of an interface or a network becomes an address to bind to.

Resolved by each process on its own node: interfaces differ between nodes, networks have one address on each.
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
    """The IPv4 address of this node on an interface (`ib0`) or in a network (`10.1.0.0/16`); empty: the host's own."""
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
            "correct network.control or network.data of the site file",
        )
    return found


def own_address() -> str:
    """The address other nodes know this host by: that of its name, else that of its default route, else loopback."""
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
    """The address of this node that reaches `host`: the one to bind to. Sends nothing."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_with(address: str) -> str:
    """The name of the interface that has this address: what gloo and NCCL ask for. Empty if none has it."""
    return next((name for name, known in _interfaces() if known == address), "")


def _interfaces() -> Iterator[tuple[str, str]]:
    """Those that are up and have an IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            yield name, socket.inet_ntoa(answer[20:24])
