"""The CURVE keys of one attempt. Owns their files; opens no socket.

Only the controller reads `server.key`; every worker reads `client.key`. Every attempt gets new keys, so a
process that survived an earlier attempt can't even complete a handshake with the current controller.
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
    """The controller's keys: its own pair and the only client key it accepts (Z85 text)."""

    public: str
    secret: str
    client_public: str


@dataclass(frozen=True, repr=False)
class ClientKeys:
    """A worker's keys: the pair shared by all workers of the attempt, and the controller's public key."""

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
    """Write new keys into `directory`, which is created if missing."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    server, client = new_keys()
    _write(directory / SERVER_FILE, server)
    _write(directory / CLIENT_FILE, client)


def load_server(directory: Path) -> ServerKeys:
    return _read(directory / SERVER_FILE, ServerKeys)


def load_client(directory: Path) -> ClientKeys:
    return _read(directory / CLIENT_FILE, ClientKeys)


def _write(path: Path, keys: ServerKeys | ClientKeys) -> None:
    # O_EXCL: never replace the keys of an attempt, or workers that hold the old ones are locked out.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(keys))


_Keys = TypeVar("_Keys", ServerKeys, ClientKeys)


def _read(path: Path, kind: type[_Keys]) -> _Keys:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        fix = "keys are made when an attempt starts: check the run directory and --attempt"
        raise SiteError(f"{path}: {error.strerror}", fix) from None
    except msgspec.DecodeError:
        raise SiteError(f"{path}: not a key file", "start a new attempt with `rollart-hpc resume`") from None
