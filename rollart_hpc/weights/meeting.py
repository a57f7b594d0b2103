"""Where the ranks of a group meet: a table of keys on the host of rank 0. Owns the table and who may use it.

torch's own TCPStore answers everybody who can reach its port, and lists its keys. This one speaks CURVE. Its server key
comes from the group's secret, and no client can complete a handshake without that key, so strangers get no answer at
all. The secret reaches the ranks over the control plane, or in a private file.

`meeting_store` is the side of the ranks.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import socket
import threading
from collections import defaultdict
from typing import Literal

import msgspec
import zmq
from zmq.utils import z85

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 << 20
_HANDSHAKE_MS = 5000
_LINGER_MS = 1000
_SPARE_CONNECTIONS = 1024

Operation = Literal["get", "check", "set", "add", "append", "compare_set", "delete", "count"]


class Request(msgspec.Struct, array_like=True):
    """`number`: chosen by the client, repeated in the answer."""

    number: int
    operation: Operation
    keys: list[str]
    values: list[bytes] = []
    amount: int = 0


class Answer(msgspec.Struct, array_like=True):
    number: int
    values: list[bytes] = []
    amount: int = 0


def new_secret() -> str:
    return secrets.token_hex(32)


def derived(secret: str, purpose: str) -> bytes:
    """A key of 32 bytes for one purpose. Keys of two purposes say nothing about each other or the secret."""
    return hashlib.blake2b(purpose.encode(), key=secret.encode(), digest_size=32).digest()


def server_keys(secret: str) -> tuple[bytes, bytes]:
    """Public and secret CURVE key of a meeting. Here the public key is a secret too: who knows it may come in."""
    own = z85.encode(derived(secret, "meeting"))
    return zmq.curve_public(own), own


class Table:
    """Keys and values. An answer that must wait for keys is given when the last of them is set. Does no I/O."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._waiting: defaultdict[str, list[tuple[bytes, Request]]] = defaultdict(list)  # by a key that is missing

    def answer(self, client: bytes, request: Request) -> list[tuple[bytes, Answer]]:
        """All answers that can be given now. One `set` may answer many clients."""
        if request.operation == "get":
            return self._get(client, request)
        key = request.keys[0] if request.keys else ""
        amount, values = self._do(request, key)
        given = [(client, Answer(request.number, values, amount))]
        if key in self._values:
            for other, waiting in self._waiting.pop(key, []):
                given += self._get(other, waiting)
        return given

    def _get(self, client: bytes, request: Request) -> list[tuple[bytes, Answer]]:
        missing = next((key for key in request.keys if key not in self._values), None)
        if missing is not None:
            self._waiting[missing].append((client, request))
            return []
        return [(client, Answer(request.number, [self._values[key] for key in request.keys]))]

    def _do(self, request: Request, key: str) -> tuple[int, list[bytes]]:
        known, new = self._values.get(key), request.values
        match request.operation:
            case "check":
                return int(all(each in self._values for each in request.keys)), []
            case "set":
                self._values.update(zip(request.keys, new, strict=True))
            case "append":
                self._values[key] = (known or b"") + new[0]
            case "add":  # torch keeps counters as decimal text
                total = int(known or b"0") + request.amount
                self._values[key] = str(total).encode()
                return total, []
            case "compare_set":
                expected, desired = new
                if (known or b"") == expected:
                    self._values[key] = desired
                return 0, [self._values.get(key, expected)]
            case "delete":
                return int(self._values.pop(key, None) is not None), []
            case "count":
                return len(self._values), []
        return 0, []


class Meeting:
    """Serves a table in a thread of its own, on a socket that is already listening, until it is closed."""

    def __init__(self, listener: socket.socket, secret: str) -> None:
        self._context = zmq.Context()
        self._context.max_sockets = 64
        router = self._context.socket(zmq.ROUTER)
        router.curve_server = True
        router.curve_publickey, router.curve_secretkey = server_keys(secret)
        router.handshake_ivl = _HANDSHAKE_MS  # strangers that say nothing don't hold a descriptor for long
        router.maxmsgsize = MAX_MESSAGE_BYTES
        router.sndhwm = router.rcvhwm = 0  # a rank has one request in flight
        router.linger = _LINGER_MS
        host, port = listener.getsockname()[:2]
        listener.listen(_SPARE_CONNECTIONS)  # all ranks dial at once
        router.setsockopt(zmq.USE_FD, listener.detach())
        router.bind(f"tcp://{f'[{host}]' if ':' in host else host}:{port}")
        self._thread = threading.Thread(target=self._serve, args=(router,), name="meeting", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._context.term()  # ends the thread's `recv`
        self._thread.join()

    def _serve(self, router: zmq.Socket[bytes]) -> None:
        table, read = Table(), msgspec.msgpack.Decoder(Request)
        with router:
            while True:
                try:
                    client, body = router.recv_multipart()
                    for receiver, answer in table.answer(client, read.decode(body)):
                        router.send_multipart([receiver, msgspec.msgpack.encode(answer)])
                except zmq.ContextTerminated:
                    return
                except (ValueError, IndexError, msgspec.MsgspecError) as error:
                    log.warning("a rank sent a request to the rendezvous that can't be answered: %s", error)
