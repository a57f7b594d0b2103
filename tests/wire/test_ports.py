"""Ports of the site's range, for our sockets and for those of libraries."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from rollart_hpc.errors import SiteError
from rollart_hpc.wire.ports import PORTS_VARIABLE, free_port, in_range, listen_tcp

LIBRARY = """
import socket
from rollart_hpc.wire.library_ports import hold_libraries
hold_libraries()
def bind(port):
    s = socket.socket()
    s.bind(("127.0.0.1", port))
    return s
a, b = bind(0), bind(0)
print(a.getsockname()[1], b.getsockname()[1])
try:
    bind(0)
except OSError as error:
    print(error.errno)
s = socket.socket(socket.AF_UNIX)
s.bind("\\0" + __name__ + str(a.getsockname()))
"""


def test_a_free_port_of_the_range_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(in_range("40000-40002")) == [40000, 40001, 40002] and list(in_range("")) == [0]
    with listen_tcp("127.0.0.1", "") as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv(PORTS_VARIABLE, f"{port}-{port}")
        for take in (listen_tcp, free_port):
            with pytest.raises(SiteError, match=f"ports {port}-{port}: Address already in use"):
                take("127.0.0.1")
    assert free_port("127.0.0.1") == port


def test_a_library_that_asks_for_any_port_gets_one_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own socket module stands for any library: its `bind` is redirected too."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        low = found.getsockname()[1]
    monkeypatch.setenv(PORTS_VARIABLE, f"{low}-{low + 1}")
    done = subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second, code = map(int, done.stdout.split())
    assert {first, second} == {low, low + 1} and code == 98
