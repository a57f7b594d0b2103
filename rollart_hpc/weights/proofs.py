"""Proof that the other end of every connection of a gloo group knows the group's secret. Owns the exchange.

gloo's ports take any connection, so a stranger who is faster than a rank could take its place. Before anything else
goes through a group, each rank sends a fresh challenge over every connection and checks what comes back. A stranger
sees challenges and answers, which are worth nothing elsewhere: an answer holds for two ranks, in one direction, of one
group, and for two challenges.
"""

from __future__ import annotations

import hmac
import secrets
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from rollart_hpc.errors import SiteError
from rollart_hpc.weights.meeting import derived

_BYTES = 32
_NAME = "proof"


class Stranger(SiteError):
    """Somebody without the secret holds a connection of the group."""


def prove(group: Any, store: Store, secret: str, deadline: timedelta) -> None:
    """`group`: torch's gloo group, formed over `store`, which is a part of a meeting that no other group uses.

    Raises Stranger, or torch's RuntimeError if a peer is silent or gone.
    """
    own, key = group.rank(), _key(group, store, secret)
    peers = [rank for rank in range(group.size()) if rank != own]
    asked = {peer: secrets.token_bytes(_BYTES) for peer in peers}
    asked_of_us = _exchange(group, asked, deadline)
    answers = {peer: _answer(key, own, peer, asked_of_us[peer], asked[peer]) for peer in peers}
    for peer, answer in _exchange(group, answers, deadline).items():
        if not hmac.compare_digest(answer, _answer(key, peer, own, asked[peer], asked_of_us[peer])):
            raise Stranger(
                f"a process without the secret took the place of rank {peer}",
                "another user reaches the ports of this run: see network.data and docs/operations.md",
            )


def _key(group: Any, store: Store, secret: str) -> bytes:
    """Another key for every group of the same secret: proofs of one are worth nothing in another."""
    if group.rank() == 0:
        store.set(_NAME, secrets.token_hex(16))
    return derived(secret, f"proof {store.get(_NAME).decode()}")


def _answer(key: bytes, answering: int, asking: int, challenge: bytes, own_challenge: bytes) -> bytes:
    text = f"{answering} to {asking} ".encode() + challenge + own_challenge
    return hmac.digest(key, text, "sha256")


def _exchange(group: Any, out: dict[int, bytes], deadline: timedelta) -> dict[int, bytes]:
    """One message to and from every peer, each over its own connection: a collective might take another way."""
    into = {peer: torch.zeros(_BYTES, dtype=torch.uint8) for peer in out}
    data = {peer: torch.frombuffer(bytearray(raw), dtype=torch.uint8) for peer, raw in out.items()}
    works = [group.recv([buffer], peer, 0) for peer, buffer in into.items()]
    works += [group.send([buffer], peer, 0) for peer, buffer in data.items()]
    for work in works:
        work.wait(deadline)
    return {peer: bytes(buffer.numpy()) for peer, buffer in into.items()}
