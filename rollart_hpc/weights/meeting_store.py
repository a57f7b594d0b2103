"""A rank's side of a meeting: torch's Store interface, so that gloo and NCCL can use it. Owns the connection.

torch calls it from C++, in whatever thread forms a group. One request is in flight at a time, as in torch's TCPStore.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import zmq
import zmq.utils.monitor
from torch.distributed import DistStoreError, Store  # type: ignore[attr-defined]

from rollart_hpc.weights.meeting import MAX_MESSAGE_BYTES, Answer, Meeting, Operation, Request, server_keys

_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_EVENTS = _REFUSED | zmq.EVENT_DISCONNECTED
_LONGEST_POLL_MS = 2**31 - 1


class MeetingStore(Store):
    """`meeting`: rank 0 passes the one it serves; it is closed with this store.

    Close it explicitly, and keep a reference as long as a group uses it: torch's side of it does not keep ours.
    """

    def __init__(self, host: str, port: int, secret: str, timeout: timedelta, meeting: Meeting | None = None) -> None:
        super().__init__()
        self.secret = secret
        self._timeout = timeout
        self._meeting = meeting
        self._where = f"{host}:{port}"
        self._number = 0
        self._lost = ""
        self._lock = threading.Lock()
        self._read = msgspec.msgpack.Decoder(Answer)
        self._waited: dict[str, bytes] = {}  # values that came with `wait`; gloo asks for them next
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.curve_serverkey = server_keys(secret)[0]
        self._dealer.curve_publickey, self._dealer.curve_secretkey = zmq.curve_keypair()
        self._dealer.maxmsgsize = MAX_MESSAGE_BYTES
        self._dealer.linger = 1000
        self._dealer.ipv6 = ":" in host
        self._monitor = self._dealer.get_monitor_socket(_EVENTS)
        self._poller = zmq.Poller()
        for each in (self._dealer, self._monitor):
            self._poller.register(each, zmq.POLLIN)
        self._dealer.connect(f"tcp://{f'[{host}]' if ':' in host else host}:{port}")

    def close(self) -> None:
        with self._lock:
            if not self._context.closed:
                self._dealer.disable_monitor()
                self._context.destroy()
                if self._meeting is not None:
                    self._meeting.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # its constructor failed
            self.close()  # ZeroMQ would wait for ever for the open sockets of a context that is collected

    # --- what torch calls ------------------------------------------------------------------------

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", [key], [_bytes(value)])

    def get(self, key: str) -> bytes:
        """Waits for the key."""
        waited = self._waited.pop(key, None)
        return self._ask("get", [key]).values[0] if waited is None else waited

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        values = self._ask("get", keys, timeout=timeout).values
        if len(keys) == 1:
            self._waited = {keys[0]: values[0]}

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._ask("get", keys).values

    def multi_set(self, keys: list[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask("check", keys).amount)

    def add(self, key: str, amount: int) -> int:
        return self._ask("add", [key], amount=amount).amount

    def append(self, key: str, value: str | bytes) -> None:
        self._ask("append", [key], [_bytes(value)])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._ask("compare_set", [key], [_bytes(expected), _bytes(desired)]).values[0]

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", [key]).amount)

    def num_keys(self) -> int:
        return self._ask("count", []).amount

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def clone(self) -> MeetingStore:
        return self

    # --- requests --------------------------------------------------------------------------------

    def _ask(
        self,
        operation: Operation,
        keys: list[str],
        values: list[bytes] | None = None,
        amount: int = 0,
        timeout: timedelta | None = None,
    ) -> Answer:
        limit_s = (timeout or self._timeout).total_seconds()
        with self._lock:
            if self._lost or self._context.closed:
                raise DistStoreError(self._lost or f"the rendezvous at {self._where} is closed")
            if operation != "check":
                self._waited.pop(keys[0] if keys else "", None)
            self._number += 1
            self._dealer.send(msgspec.msgpack.encode(Request(self._number, operation, keys, values or [], amount)))
            return self._await(time.monotonic() + limit_s, f"{operation} {', '.join(keys[:3])}", limit_s)

    def _await(self, end_s: float, what: str, limit_s: float) -> Answer:
        while (left_s := end_s - time.monotonic()) > 0:
            ready: dict[Any, int] = dict(self._poller.poll(min(_LONGEST_POLL_MS, math.ceil(1000 * left_s))))
            if self._dealer in ready:
                answer = self._read.decode(self._dealer.recv())
                if answer.number == self._number:  # else the answer to a request that was given up
                    return answer
            elif self._monitor in ready:
                self._lost = self._reason(zmq.utils.monitor.recv_monitor_message(self._monitor)["event"])
                raise DistStoreError(self._lost)
        raise DistStoreError(f"no answer from the rendezvous at {self._where} within {limit_s:g} s ({what})")

    def _reason(self, event: int) -> str:
        if event & _REFUSED:
            return f"the rendezvous at {self._where} refused us: it has another secret"
        return f"lost the connection to the rendezvous at {self._where}"


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
