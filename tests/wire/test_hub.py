"""The hub against real sockets: what is ours goes through, all else is refused, counted, and the run goes on."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys

import pytest
import zmq

from rollart_hpc.errors import SiteError
from rollart_hpc.wire.hub import Hub, identity_of
from rollart_hpc.wire.keys import ClientKeys, new_keys
from rollart_hpc.wire.link import Link
from rollart_hpc.wire.members import Joined
from rollart_hpc.wire.messages import MAX_FRAMES, PROTOCOL, Message, Refused, Stop, WhoAreYou, decode, encode
from rollart_hpc.wire.parts import pack, send_parts, unpack
from tests.wire.star import PATIENCE_S, Controller, ask, make_hello


class Peer:
    """A bare socket with the right key (or none), to send what `Link` never would."""

    def __init__(self, controller: Controller, name: str = "odd-0", keys: ClientKeys | None = None) -> None:
        self.hello = make_hello(name)
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvtimeo = 10_000
        self.socket.identity = identity_of(name, self.hello.incarnation)
        if keys is not None:
            self.socket.curve_publickey = keys.public.encode()
            self.socket.curve_secretkey = keys.secret.encode()
            self.socket.curve_serverkey = keys.server_public.encode()
        self.socket.connect(controller.address)

    def send(self, message: Message, *payloads: bytes) -> None:
        send_parts(self.socket, [encode(message), *payloads])

    def receive(self) -> Message:
        return decode(unpack(self.socket.recv_multipart())[0])

    def close(self) -> None:
        self.socket.close()
        self.context.term()


def run_goes_on(controller: Controller) -> None:
    link = Link(controller.address, controller.client, make_hello("good-0"))
    link.send(ask("still here"), b"payload")
    received = link.recv(PATIENCE_S)
    assert received is not None and received[0] == Stop("still here") and bytes(received[1][0]) == b"payload"
    link.close()


def test_payloads_pass_untouched_and_in_order(controller: Controller) -> None:
    link = Link(controller.address, controller.client, make_hello())
    for number in range(200):
        link.send(ask(str(number)), bytes([number]) * number, b"")
    for number in range(200):
        received = link.recv(PATIENCE_S)
        assert received is not None
        message, frames = received
        assert message == Stop(str(number)) and [bytes(f) for f in frames] == [bytes([number]) * number, b""]
    link.close()


def test_stranger_without_a_key(controller: Controller) -> None:
    stranger = Peer(controller)
    stranger.send(stranger.hello)
    assert controller.counted("refused_handshakes") >= 1
    run_goes_on(controller)
    stranger.close()
    assert "odd-0" not in controller.members.alive


def test_stranger_with_a_wrong_key(controller: Controller) -> None:
    other = new_keys()[1]["env"]
    stranger = Peer(controller, keys=ClientKeys(other.public, other.secret, controller.client.server_public))
    stranger.send(stranger.hello)
    assert controller.counted("refused_handshakes") >= 1
    run_goes_on(controller)
    stranger.close()
    assert "odd-0" not in controller.members.alive


def test_stranger_that_speaks_http(controller: Controller) -> None:
    with socket.create_connection(("127.0.0.1", controller.hub.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 10)
        assert controller.counted("disconnects") >= 1
    run_goes_on(controller)


@pytest.mark.parametrize(
    "parts",
    [[b""], [bytes([PROTOCOL])], [bytes([PROTOCOL + 1]) + encode(WhoAreYou())[1:]],
     [bytes([PROTOCOL]) + b"\xff\xff garbage"], [encode(WhoAreYou())[:-1]],
     [encode(WhoAreYou())] + [b""] * MAX_FRAMES, [encode(make_hello("somebody-else"))]],
    ids=["empty", "no body", "wrong protocol", "garbage", "cut short", "too many frames", "other's name"],
)  # fmt: skip
def test_bad_messages_are_counted_and_logged(
    controller: Controller, parts: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    peer = Peer(controller, keys=controller.client)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            send_parts(peer.socket, parts)
        assert controller.counted("bad_messages", 3) == 3
    assert sum("bad_messages" in line for line in caplog.messages) == 1  # rate-limited
    run_goes_on(controller)
    peer.close()


@pytest.mark.parametrize("frames", [[b""], [b"\x01"], [encode(WhoAreYou())], [*pack([encode(WhoAreYou())]), b"more"]])
def test_torn_messages_are_counted(controller: Controller, frames: list[bytes]) -> None:
    peer = Peer(controller, keys=controller.client)
    peer.socket.send_multipart(frames)
    assert controller.counted("bad_messages", 1) == 1
    run_goes_on(controller)
    peer.close()


def test_oversized_frame_is_refused_and_the_peer_may_stay(controller: Controller) -> None:
    peer = Peer(controller, keys=controller.client)
    peer.send(peer.hello)
    peer.receive()
    peer.send(ask("x"), bytes(200_000))
    assert controller.counted("oversized") == 1
    peer.send(ask("fits"), bytes(100_000))
    assert peer.receive() == Stop("fits")
    run_goes_on(controller)
    peer.close()


def test_monstrous_frame_costs_the_connection_but_not_the_run(controller: Controller) -> None:
    peer = Peer(controller, keys=controller.client)
    cut = peer.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    peer.send(ask("x"), bytes(1_000_000))
    assert cut.poll(10_000)
    peer.socket.disable_monitor()
    cut.close()
    run_goes_on(controller)
    peer.close()


def test_who_never_said_hello_is_asked(controller: Controller) -> None:
    peer = Peer(controller, keys=controller.client)
    peer.send(ask("x"))
    assert isinstance(peer.receive(), WhoAreYou)
    assert controller.hub.counters["unknown"] == 1
    assert controller.messages.empty()
    peer.close()


def test_superseded_process_is_refused_for_good(controller: Controller) -> None:
    first, second = Peer(controller, keys=controller.client), Peer(controller, keys=controller.client)
    for peer in (first, second):
        peer.send(peer.hello)
        peer.receive()
    assert isinstance(first.receive(), Refused)
    first.send(first.hello)  # comes back later than the newer one
    assert isinstance(first.receive(), Refused)
    assert controller.hub.counters["superseded"] == 1
    assert controller.members.alive["odd-0"].incarnation == second.hello.incarnation
    second.send(ask("mine"))
    assert second.receive() == Stop("mine")
    first.close()
    second.close()


def test_send_to_nobody_and_to_the_vanished_is_false() -> None:
    server, _ = new_keys()
    hub = Hub("127.0.0.1", server)
    assert hub.send("nobody", Stop("x")) is False
    hub.admit("env-0", "gone", "env")  # admitted, but its connection is no more
    assert hub.send("env-0", Stop("x"), b"frame") is False
    assert hub.counters["unreachable"] == 2
    hub.close()


def test_vanished_peer_after_a_conversation(controller: Controller) -> None:
    peer = Peer(controller, keys=controller.client)
    peer.send(peer.hello)
    assert isinstance(controller.event(), Joined)
    peer.close()
    run_goes_on(controller)
    assert not controller.hub.counters, "a peer that goes is no stranger"


def test_unbindable_host_is_a_site_error() -> None:
    server, _ = new_keys()
    with pytest.raises(SiteError, match="can't listen"):
        Hub("203.0.113.1", server)


NO_FILES = """
import os, resource, socket, time
from rollart_hpc.wire.hub import Hub
from rollart_hpc.wire.keys import new_keys
hub = Hub("127.0.0.1", new_keys()[0])
clients = [socket.socket() for _ in range(8)]
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 3, hard))
for client in clients:
    client.connect((hub.host, hub.port))
limit_s = time.monotonic() + 60
while not hub.counters["refused_connections"] and time.monotonic() < limit_s:
    hub.poll(0.05)
print(hub.counters["refused_connections"] > 0)
os._exit(0)
"""


def test_a_connection_that_no_file_is_left_for_is_told() -> None:
    done = subprocess.run([sys.executable, "-c", NO_FILES], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "True" and "raise `ulimit -Hn`" in done.stderr
