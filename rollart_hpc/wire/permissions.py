"""Who may send what to a hub. Owns the table; `wire.hub` applies it to every message, by one lookup.

A role is proved by its key (`wire.keys`), named in Hello, and fixed for a process and its name from then on.
"""

from __future__ import annotations

from rollart_hpc.types import Role
from rollart_hpc.wire import messages as ms

Permission = frozenset[type[ms.Message]]

_EVERYBODY: Permission = frozenset({ms.Hello, ms.Heartbeat, ms.Bye, ms.Warned})
_TRANSFERS: Permission = frozenset({ms.TransferReady, ms.TransferFailed, ms.TransferSent})

MAY_SEND: dict[Role, Permission] = {
    "env": frozenset({*_EVERYBODY, ms.TurnWanted, ms.Ended}),
    "engine": frozenset(
        {*_EVERYBODY, ms.PrefixMissing, ms.Prefilled, ms.Generated, ms.Installed, ms.InstallFailed, ms.TransferFailed}
    ),
    "relay": frozenset({*_EVERYBODY, *_TRANSFERS, ms.Held}),
    "trainer": frozenset({*_EVERYBODY, *_TRANSFERS, ms.Published, ms.BatchWanted, ms.Committed, ms.Saved}),
    "reward": frozenset({*_EVERYBODY, ms.Scored, ms.ScoreFailed}),
    "supervisor": frozenset({*_EVERYBODY, ms.Exited, ms.Drain, ms.SaveWanted, ms.TrainerAttempt}),
    "agent": frozenset({*_EVERYBODY, ms.Offer, ms.Launched, ms.Died}),
}
NOTHING: Permission = frozenset()


def permission_of(role: str) -> Permission:
    return MAY_SEND.get(role, NOTHING)  # type: ignore[call-overload, no-any-return]
