"""A rendezvous for probes: they exchange addresses and wait for each other. Owns the small protocol.

    probe -> hub   {"token", "name", "address", "port"}     where it listens for data
    hub -> probe   {"peers": {name: [address, port]}}       once all live probes have called
    probe -> hub   {"done": true}                           after it has connected to them
    hub -> probe   {"bye": true}                            once all are done: no probe needs its port any longer

Messages are lines of JSON. The token, from a private file, keeps strangers out. No message is secret.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

DIAL_S = 15.0
_LOOK_EVERY_S = 0.5
_TOKEN_BYTES = 32  # as hex


def new_token() -> str:
    return secrets.token_hex(_TOKEN_BYTES // 2)


def echo(listener: socket.socket, token: str) -> None:
    """Answer every caller that knows the token, in a thread, until the listener is closed."""

    def serve() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            with caller:
                caller.settimeout(DIAL_S)
                try:
                    if secrets.compare_digest(caller.recv(_TOKEN_BYTES), token.encode()):
                        caller.sendall(b"good")
                except OSError:
                    continue

    threading.Thread(target=serve, daemon=True, name="echo").start()


def dial(address: str, port: int, token: str) -> str:
    """Connect to an echo. Returns an empty string if it answered, else the reason."""
    try:
        with socket.create_connection((address, port), timeout=DIAL_S) as link:
            link.sendall(token.encode())
            return "" if link.recv(4) == b"good" else "something else answered"
    except OSError as error:
        return error.strerror or str(error)


class Caller:
    """Sends and receives one line of JSON at a time."""

    def __init__(self, link: socket.socket) -> None:
        self._link, self._file = link, link.makefile("r")

    def send(self, **values: Any) -> None:
        self._link.sendall(json.dumps(values).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        line = self._file.readline()
        return dict(json.loads(line)) if line else {}

    def close(self) -> None:
        self._file.close()
        self._link.close()


class ProbeHub:
    def __init__(self, listener: socket.socket, token: str, limit_s: float) -> None:
        self._listener, self._token, self._limit_s = listener, token, limit_s
        self._callers: dict[str, Caller] = {}

    def gather(self, still_expected: Callable[[], set[str]]) -> None:
        """Wait until all expected probes have called, then send everyone the list of peers."""
        deadline = time.monotonic() + self._limit_s
        peers: dict[str, tuple[str, int]] = {}
        while still_expected() - peers.keys() and time.monotonic() < deadline:
            self._listener.settimeout(_LOOK_EVERY_S)
            try:
                link, _ = self._listener.accept()
                link.settimeout(self._limit_s)
                caller = Caller(link)
                said = caller.receive()
            except (OSError, ValueError):
                continue
            if secrets.compare_digest(str(said.get("token", "")), self._token):
                self._callers[said["name"]] = caller
                peers[said["name"]] = (said["address"], said["port"])
        for caller in self._callers.values():
            _try(partial(caller.send, peers=peers))

    def part(self) -> None:
        """Wait until all have connected to each other, then release them."""
        for caller in self._callers.values():
            _try(caller.receive)
        for caller in self._callers.values():
            _try(partial(caller.send, bye=True))
            _try(caller.close)


def _try(action: Callable[[], Any]) -> None:
    """Ignore a probe that is gone: the exit code of its step reports it."""
    try:
        action()
    except (OSError, ValueError):
        return
