"""The controller's end of the star: one ROUTER that every process of the run talks to.

Owns the socket, access control and the route to each name. Every role has a CURVE key of its own: a Hello must name
the role of its key, and a process may only send what its role may (`wire.permissions`). Decodes headers and forwards
payloads untouched. `members` decides which process may use a name; the caller decides what a message means. Invalid
input from strangers or broken peers is refused, logged and counted, and the run continues.

A peer's socket identity is `name#incarnation`: a restarted process never shares a route with its predecessor,
so late messages from the superseded process are recognised.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from contextlib import suppress

import zmq
import zmq.utils.monitor
from zmq.utils import z85

from rollart_hpc.errors import SiteError
from rollart_hpc.types import Frame
from rollart_hpc.wire import messages
from rollart_hpc.wire.gate import Gate
from rollart_hpc.wire.keys import ServerKeys
from rollart_hpc.wire.messages import MAX_FRAME_BYTES, MAX_FRAMES, MAX_HEADER_BYTES, AnyMessage, BadMessage, Message
from rollart_hpc.wire.parts import Oversized, TornMessage, receive_from_peer, send_parts, unpack
from rollart_hpc.wire.permissions import Permission, permission_of
from rollart_hpc.wire.ports import in_range

log = logging.getLogger(__name__)

Incoming = tuple[str, AnyMessage, list[Frame]]

ZAP_ADDRESS = "inproc://zeromq.zap.01"  # fixed by ZeroMQ's RFC 27, private to this hub's context
SUPERVISOR = "supervisor"  # its role and its name
LOG_EVERY_S = 5.0
MOST_EVENTS = 1000  # connection events read at a time
# A connection that has not proved its key by then is closed. At 5 s, 3,000 workers that register at once on a busy
# machine were cut off, and their new handshakes delayed the rest.
HANDSHAKE_MS = 15_000
HANDSHAKE_FAILURES = {
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "wrong key",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "another protocol, or encrypted for another controller",
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "the peer broke off the handshake",
}


def identity_of(name: str, incarnation: str) -> bytes:
    return f"{name}#{incarnation}".encode()


class Hub:
    """Single-threaded: create, poll, send and close from one thread."""

    def __init__(
        self, bind_host: str, keys: ServerKeys, *, port: int = 0, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._max_frame_bytes = max_frame_bytes
        self._roles_of_keys = keys.roles
        self._routes: dict[str, bytes] = {}  # admitted and not lost
        self._names: dict[bytes, tuple[str, Permission]] = {}  # the same by identity, with what it may send
        self._roles: dict[str, str] = {}  # by name: a name never changes its role
        self._newest: dict[str, bytes] = {}  # the last one admitted, even if lost
        self._superseded: set[bytes] = set()
        self._num_shaken = 0  # successful handshakes
        self._shaken_before: dict[int, int] = {}  # by file descriptor: `_num_shaken` when it connected
        self._logged_s: dict[str, float] = {}
        try:
            self._gate = Gate(bind_host, port)
        except OSError as error:
            where = f"{bind_host}:{port or 'any port'}"
            raise SiteError(f"can't listen on {where}: {error}", "choose another interface or port range") from None
        self.host, self.port = bind_host, self._gate.port
        self._context = zmq.Context()
        self._zap = self._context.socket(zmq.REP)
        self._zap.linger = 0
        self._zap.bind(ZAP_ADDRESS)  # before the router binds, or the first handshake goes unchecked
        self._router = self._make_router(keys)
        self._monitor = self._router.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_ACCEPTED
            | zmq.EVENT_ACCEPT_FAILED
            | zmq.EVENT_DISCONNECTED
        )
        self._router.setsockopt(zmq.USE_FD, self._gate.listener())
        self._router.bind(f"tcp://{bind_host}:{self.port}")
        self._poller = zmq.Poller()
        for socket in (self._router, self._zap, self._monitor):
            self._poller.register(socket, zmq.POLLIN)

    def _make_router(self, keys: ServerKeys) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        router.curve_server = True
        router.curve_publickey = keys.public.encode()
        router.curve_secretkey = keys.secret.encode()
        router.zap_domain = b"rollart"
        router.router_mandatory = True  # sending to a vanished peer is an error, not a silent drop
        router.router_handover = True  # a reconnecting peer takes over the identity of its dead connection
        # Credits limit a worker to a few hundred messages in flight. Only a peer that stopped reading can fill a
        # queue of 10,000: `send` then returns False, and the peer is lost by its silence.
        router.sndhwm = 10_000
        router.rcvhwm = 10_000
        # Above this size ZeroMQ closes the connection without reading the frame. Between our own limit and this
        # one the whole frame arrives, so we can refuse it by name and the peer keeps its connection.
        router.maxmsgsize = 4 * self._max_frame_bytes
        router.linger = 1000  # ms at close: enough to send the last Stop, short enough not to delay the exit
        router.tcp_keepalive = 1  # a node that lost power never closes its connections
        router.tcp_keepalive_idle = 30
        router.tcp_keepalive_intvl = 10
        router.tcp_keepalive_cnt = 3
        router.handshake_ivl = HANDSHAKE_MS  # strangers hold a descriptor for this long at most
        return router

    def watch(self, descriptor: int) -> None:
        """`poll` also returns when this file descriptor is readable."""
        self._poller.register(descriptor, zmq.POLLIN)

    # --- messages --------------------------------------------------------------------------------

    def poll(self, timeout_s: float | None, max_messages: int = 1000) -> list[Incoming]:
        """Messages that have arrived; waits at most `timeout_s` (None: forever). May return early with none."""
        timeout_ms = None if timeout_s is None else max(0, int(timeout_s * 1000 + 0.999))
        ready = dict(self._poller.poll(timeout_ms))
        if self._zap in ready:
            self._answer_handshakes()
        if self._monitor in ready:
            self._read_monitor()
        self._gate.open_if_room()
        arrived: list[Incoming] = []
        if self._router in ready:
            self._drain(arrived, max_messages)
        return arrived

    def _drain(self, arrived: list[Incoming], max_messages: int) -> None:
        for _ in range(max_messages):
            try:
                identity, frames, last = receive_from_peer(
                    self._router, self._max_frame_bytes + MAX_HEADER_BYTES, MAX_FRAMES
                )
            except zmq.Again:
                return
            except Oversized as error:
                self.complain("oversized", f"message from {error.identity[:80]!r}: {error}")
                continue
            try:
                incoming = self._read(identity, frames, last)
            except (BadMessage, TornMessage) as error:
                self.complain("bad_messages", f"bad message from {identity[:80]!r}: {error}")
                continue
            if incoming is not None:
                arrived.append(incoming)

    def _read(self, identity: bytes, frames: list[bytes], last: zmq.Frame) -> Incoming | None:
        """`last`: the last frame as it arrived; ZeroMQ's side of it knows the role of the peer's key."""
        parts = unpack(frames)
        if not 1 <= len(parts) <= MAX_FRAMES:
            raise BadMessage(f"{len(parts)} parts, expected 1 to {MAX_FRAMES}")
        if len(parts[0]) > MAX_HEADER_BYTES:
            raise BadMessage(f"a header of {len(parts[0])} bytes, expected at most {MAX_HEADER_BYTES}")
        message = messages.decode(parts[0])
        known = self._names.get(identity)
        if known is not None and type(message) is not messages.Hello:
            if type(message) in known[1]:
                return known[0], message, parts[1:]
            self.complain("forbidden", f"{type(message).__name__} from {known[0]}, which may not send it")
            return None
        name, _, incarnation = identity.decode(errors="replace").partition("#")
        if isinstance(message, messages.Hello) and (name, incarnation) != (message.name, message.incarnation):
            raise BadMessage(f"Hello of {message.name!r} under another identity")
        if identity in self._superseded:
            self.complain("superseded", f"message from a process that lost the name {name} to a newer one")
            self._send_raw(identity, messages.Refused(f"another process took over the name {name}"))
            return None
        if not isinstance(message, messages.Hello):
            self.complain("unknown", f"{type(message).__name__} from {name!r}, which has not sent Hello")
            self._send_raw(identity, messages.WhoAreYou())
            return None
        problem = self._role_problem(message, last)
        if problem:
            self.complain("forbidden", f"Hello of {name!r}: {problem}")
            self._send_raw(identity, messages.Refused(problem))
            return None
        return message.name, message, parts[1:]  # the same object as in Hello: lookups compare by address

    def _role_problem(self, hello: messages.Hello, last: zmq.Frame) -> str:
        """A role is proved by its key, and a process can't take over the name of another role's."""
        proved, owner = last.get("User-Id"), self._roles.get(hello.name, hello.role)
        if proved != hello.role:
            return f"role {hello.role!r} with the key of role {proved!r}"
        if owner != hello.role or (hello.name == SUPERVISOR) != (hello.role == SUPERVISOR):
            return f"a process of role {hello.role!r} can't use the name {hello.name}"
        return ""

    def send(self, name: str, message: Message, *frames: Frame) -> bool:
        """False: the peer is not admitted, has vanished, or has stopped reading. A peer can't make it raise."""
        identity = self._routes.get(name)
        if identity is None or not self._send_raw(identity, message, *frames):
            self.counters["unreachable"] += 1
            return False
        return True

    def _send_raw(self, identity: bytes, message: Message, *frames: Frame) -> bool:
        try:
            send_parts(self._router, (messages.encode(message), *frames), identity)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    # --- routes, decided by `members` --------------------------------------------------------------

    def admit(self, name: str, incarnation: str, role: str) -> None:
        """From now on this process owns `name`; every message of an earlier one is refused."""
        identity = identity_of(name, incarnation)
        earlier = self._newest.get(name)
        if earlier is not None and earlier != identity:
            self._send_raw(earlier, messages.Refused(f"another process took over the name {name}"))
            self._superseded.add(earlier)
            self._names.pop(earlier, None)
        self._routes[name] = self._newest[name] = identity
        self._roles[name] = role
        self._names[identity] = name, permission_of(role)

    def refuse(self, name: str, incarnation: str, reason: str) -> None:
        self.counters["refused_hellos"] += 1
        self._send_raw(identity_of(name, incarnation), messages.Refused(reason))

    def forget(self, name: str) -> None:
        """The process is lost. If it sends again, it gets WhoAreYou."""
        identity = self._routes.pop(name, None)
        if identity is not None:
            self._names.pop(identity, None)

    # --- handshakes ----------------------------------------------------------------------------------

    def _answer_handshakes(self) -> None:
        """ZAP (ZeroMQ RFC 27): each CURVE handshake asks here which role the client's key belongs to."""
        while True:
            try:
                request = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            version, number, _domain, address, _identity, mechanism = request[:6]
            role = self._roles_of_keys.get(z85.encode(request[6]).decode(), "") if mechanism == b"CURVE" else ""
            if not role:
                self._log_sometimes("zap", f"handshake from {address.decode(errors='replace')} with an unknown key")
            code, text = (b"200", b"OK") if role else (b"400", b"unknown key")
            self._zap.send_multipart([version, number, code, text, role.encode(), b""])  # the role becomes the User-Id

    def _read_monitor(self) -> None:
        """Success events don't name a connection. One without any success during its lifetime was a stranger's."""
        for _ in range(MOST_EVENTS):  # a listener that can't accept reports it endlessly
            if not self._monitor.poll(0):
                return
            event = zmq.utils.monitor.recv_monitor_message(self._monitor)
            kind, value = int(event["event"]), int(event["value"])
            if kind in HANDSHAKE_FAILURES:
                self.complain("refused_handshakes", HANDSHAKE_FAILURES[kind])
            elif kind == zmq.EVENT_ACCEPT_FAILED:
                self._gate.shut()
                self.complain("refused_connections", f"{os.strerror(value)}; if out of files, raise `ulimit -Hn`")
            elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._num_shaken += 1
            elif kind == zmq.EVENT_ACCEPTED:
                self._shaken_before[value] = self._num_shaken
            elif self._shaken_before.pop(value, None) == self._num_shaken:
                self.complain("disconnects", "a connection that did not speak ZeroMQ")
            else:  # closed, broken, or a frame larger than `maxmsgsize`
                log.debug("connection closed")

    # --- complaints ------------------------------------------------------------------------------------

    def complain(self, counter: str, text: str) -> None:
        self.counters[counter] += 1
        self._log_sometimes(counter, f"{text} ({counter}: {self.counters[counter]})")

    def _log_sometimes(self, kind: str, text: str) -> None:
        """At most one line per kind every `LOG_EVERY_S`: a peer that sends garbage in a loop must not fill the disk."""
        now = time.monotonic()
        if now - self._logged_s.get(kind, -LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged_s[kind] = now
            log.warning("refused: %s", text)

    def close(self) -> None:
        self._router.disable_monitor()
        self._monitor.close(0)
        self._router.close()
        self._zap.close(0)
        self._context.term()
        self._gate.close()


def listen(host: str, ports: str, server_keys: ServerKeys) -> Hub:
    """A hub on any free port, or on a free one in the range `LOW-HIGH`."""
    if not ports:
        return Hub(host, server_keys)
    for port in in_range(ports):
        with suppress(SiteError):
            return Hub(host, server_keys, port=port)
    raise SiteError(f"no free port in {ports} on {host}", "widen network.ports in the site file")
