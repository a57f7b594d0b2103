"""The CURVE keys of one attempt, a pair for each role. Owns their files; opens no socket.

Only the controller reads `server.key`; a worker reads the file of its own role, e.g. `env.key`. The hub knows which key
belongs to which role, so a process can't join as another role than its key's. Every attempt gets new keys, so a process
that survived an earlier attempt can't even complete a handshake with the current controller.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from rollart_hpc.errors import SiteError
from rollart_hpc.types import Role

SERVER_FILE = "server.key"
WORKERS: tuple[Role, ...] = ("env", "engine", "relay", "trainer", "reward", "supervisor")  # of a controller
AGENTS: tuple[Role, ...] = ("agent",)  # of a supervisor


@dataclass(frozen=True, repr=False)
class ServerKeys:
    """A hub's own pair, and the public keys it accepts, each with its role (Z85 text)."""

    public: str
    secret: str
    roles: dict[str, Role]


@dataclass(frozen=True, repr=False)
class ClientKeys:
    """A worker's keys: the pair shared by all workers of its role and attempt, and the hub's public key."""

    public: str
    secret: str
    server_public: str


def new_keys(roles: Iterable[Role] = WORKERS) -> tuple[ServerKeys, dict[Role, ClientKeys]]:
    server_public, server_secret = _pair()
    clients = {role: ClientKeys(*_pair(), server_public) for role in roles}
    return ServerKeys(server_public, server_secret, {keys.public: role for role, keys in clients.items()}), clients


def _pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def make_keys(directory: Path, roles: Iterable[Role] = WORKERS) -> None:
    """Write new keys into `directory`, which is created if missing."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    server, clients = new_keys(roles)
    _write(directory / SERVER_FILE, server)
    for role, keys in clients.items():
        _write(client_file(directory, role), keys)


def client_file(directory: Path, role: Role) -> Path:
    return directory / f"{role}.key"


def load_server(directory: Path) -> ServerKeys:
    return _read(directory / SERVER_FILE, ServerKeys)


def load_client(directory: Path, role: Role) -> ClientKeys:
    return _read(client_file(directory, role), ClientKeys)


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
