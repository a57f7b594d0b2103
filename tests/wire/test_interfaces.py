"""Which address of this node a process binds to."""

from __future__ import annotations

import ipaddress

import pytest

from rollart_hpc.errors import SiteError
from rollart_hpc.wire.interfaces import address_facing, address_of, interface_with


def test_by_name_and_by_network():
    assert address_of("lo") == address_of("127.0.0.0/8") == "127.0.0.1"


def test_the_hosts_own_is_an_address():
    assert ipaddress.ip_address(address_of(""))


def test_an_unknown_interface_tells_which_there_are():
    with pytest.raises(SiteError, match=r"lo 127\.0\.0\.1") as error:
        address_of("no-such0")
    assert "network.control" in error.value.fix


def test_the_interface_that_reaches_loopback():
    assert interface_with(address_facing("127.0.0.1", 9)) == "lo"
