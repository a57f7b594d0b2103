"""The CURVE keys of one attempt. Owns their files; opens no socket.

`server.key` is read by the controller alone, `client.key` by every worker. Both are made anew for every
attempt, so a process that survived an earlier attempt can't even shake hands with the present controller.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from rollart_hpc.errors import SiteError

SERVER_FILE = "server.key"
CLIENT_FILE = "client.key"


@dataclass(frozen=True, repr=False)
class ServerKeys:
    """What the controller needs: its own pair and the only client key it admits (Z85 text)."""

    public: str
    secret: str
    client_public: str


@dataclass(frozen=True, repr=False)
class ClientKeys:
    """What a worker needs: the pair shared by all workers of the attempt and the controller's public key."""

    public: str
    secret: str
    server_public: str


def new_keys() -> tuple[ServerKeys, ClientKeys]:
    server_public, server_secret = (key.decode() for key in zmq.curve_keypair())
    client_public, client_secret = (key.decode() for key in zmq.curve_keypair())
    return (
        ServerKeys(server_public, server_secret, client_public),
        ClientKeys(client_public, client_secret, server_public),
    )


def make_keys(directory: Path) -> None:
    """Write a fresh set into `directory` (made if it is not there)."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    server, client = new_keys()
    _write(directory / SERVER_FILE, server)
    _write(directory / CLIENT_FILE, client)


def load_server(directory: Path) -> ServerKeys:
    return _read(directory / SERVER_FILE, ServerKeys)


def load_client(directory: Path) -> ClientKeys:
    return _read(directory / CLIENT_FILE, ClientKeys)


def _write(path: Path, keys: ServerKeys | ClientKeys) -> None:
    # O_EXCL: an attempt's keys are never replaced, workers that hold the old ones would be locked out.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(keys))


_Keys = TypeVar("_Keys", ServerKeys, ClientKeys)


def _read(path: Path, kind: type[_Keys]) -> _Keys:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise SiteError(f"{path}: {error.strerror}", "keys belong to an attempt: was this one started?") from None
    except msgspec.DecodeError:
        raise SiteError(f"{path}: not a key file", "start a new attempt with `rollart-hpc resume`") from None
