"""Probes meet at a hub, dial each other and part; strangers are left out."""

from __future__ import annotations

import socket
import threading

import pytest

from rollart_hpc.doctor.exchange import Caller, ProbeHub, dial, echo, new_token
from rollart_hpc.errors import SiteError
from rollart_hpc.wire.ports import listen_tcp

HERE = "127.0.0.1"


def test_two_probes_learn_of_each_other_and_a_stranger_of_nobody() -> None:
    token, listener = new_token(), listen_tcp(HERE, "")
    port = listener.getsockname()[1]
    hub = ProbeHub(listener, token, limit_s=60)
    seen: dict[str, object] = {}

    def probe(name: str) -> None:
        caller = Caller(socket.create_connection((HERE, port), timeout=60))
        caller.send(token=token, name=name, address=HERE, port=len(name))
        seen[name] = caller.receive()["peers"]
        caller.send(done=True)
        assert caller.receive() == {"bye": True}
        caller.close()

    stranger = Caller(socket.create_connection((HERE, port), timeout=60))
    stranger.send(token="guess", name="eve", address=HERE, port=1)
    threads = [threading.Thread(target=probe, args=(name,)) for name in ("cpu", "h800")]
    for thread in threads:
        thread.start()
    hub.gather(lambda: {"cpu", "h800"})
    hub.part()
    for thread in threads:
        thread.join(60)
    peers = {"cpu": [HERE, 3], "h800": [HERE, 4]}
    assert seen == {"cpu": peers, "h800": peers}
    stranger.close()
    listener.close()


def test_nobody_is_waited_for_who_has_ended() -> None:
    with listen_tcp(HERE, "") as listener:
        ProbeHub(listener, new_token(), limit_s=600).gather(set)


def test_only_who_knows_the_token_gets_an_answer() -> None:
    token, listener = new_token(), listen_tcp(HERE, "")
    port = listener.getsockname()[1]
    echo(listener, token)
    assert dial(HERE, port, token) == ""
    assert dial(HERE, port, new_token()) != ""
    listener.close()


def test_a_range_that_is_taken_is_said() -> None:
    with listen_tcp(HERE, "") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SiteError, match=r"network\.ports"):
            listen_tcp(HERE, f"{port}-{port}")
