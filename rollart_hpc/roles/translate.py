"""Translates messages to events and commands to messages. Owns the mapping; decides nothing.

Messages have passed `roles.checks`. Those that came too late have not been compared with their payloads.
"""

from __future__ import annotations

import struct

from rollart_hpc.flow import events as ev
from rollart_hpc.types import Frame, WeightsId
from rollart_hpc.vocabulary import DONE, DropReason, EventKind
from rollart_hpc.wire import messages as ms

_int32 = struct.Struct("<i").unpack_from
LATE_S = 5.0  # a main loop that came around later than this is of interest to the core


def _generated(m: ms.Generated, frames: list[Frame]) -> ev.Event:
    """Reads only the first and last entry of the versions frame: the core needs no more."""
    versions = frames[2] if len(frames) == 3 else b""
    first, last = (_int32(versions, 0)[0], _int32(versions, len(versions) - 4)[0]) if len(versions) >= 4 else (-1, -1)
    return ev.Generated(m.request, first, last, m.num_prefill_tokens, m.num_decode_tokens)


def _prompt_tokens(m: ms.TurnWanted, frames: list[Frame]) -> int:
    new = len(frames[0]) // 4 if frames else 0
    return new if m.full else m.prefix_tokens + new


def _ended(m: ms.Ended) -> ev.Event:
    """An unknown reason still ends the trajectory: if we refused the message, its slot would never be free again."""
    if m.status == DONE:
        return ev.Ended(m.trajectory, m.issue, None, m.num_turns)
    failure = DropReason.of(m.status)
    detail = f"{m.status}: {m.detail}" if failure is DropReason.UNKNOWN_REASON else m.detail
    return ev.Ended(m.trajectory, m.issue, failure, m.num_turns, detail)


def event_of(name: str, m: ms.AnyMessage, frames: list[Frame]) -> ev.Event | None:  # noqa: PLR0912 - one line each
    """The event of a worker's message; None if it has none (a heartbeat, for example)."""
    match m:
        case ms.Heartbeat():
            return ev.Beat(name, m.age_s, m.work) if m.work or m.age_s >= LATE_S else None
        case ms.TurnWanted():
            return ev.TurnWanted(m.trajectory, m.issue, m.turn, _prompt_tokens(m, frames), m.max_new_tokens)
        case ms.Generated():
            return _generated(m, frames)
        case ms.Prefilled():
            return ev.Prefilled(m.request, m.kv, m.num_prefill_tokens)
        case ms.PrefixMissing():
            return ev.PrefixMissing(m.request)
        case ms.Ended():
            return _ended(m)
        case ms.Scored():
            return ev.Scored(m.trajectory, m.issue, m.reward, m.success)
        case ms.ScoreFailed():
            return ev.ScoreFailed(m.trajectory, m.issue, name, m.reason)
        case ms.BatchWanted():
            return ev.BatchWanted(m.version)
        case ms.Committed():
            return ev.Committed(m.version, m.wait_s, m.train_s, bool(m.metrics.get(EventKind.UPDATE_SKIPPED)))
        case ms.Saved():
            return ev.Saved(m.version, m.error)
        case ms.Published():
            return ev.Published(WeightsId(m.attempt, m.version))
        case ms.Held():
            return ev.Held(name, WeightsId(m.attempt, m.version))
        case ms.TransferReady():
            return ev.TransferReady(m.epoch, m.host, m.port, m.secret)
        case ms.TransferFailed():
            return ev.TransferFailed(m.epoch, name)
        case ms.TransferSent():
            return ev.TransferSent(m.epoch, m.collective)
        case ms.Installed():
            return ev.Installed(name, WeightsId(m.attempt, m.version), m.num_bytes, m.seconds, m.exposed_s)
        case ms.InstallFailed():
            return ev.InstallFailed(name, WeightsId(m.attempt, m.version))
        case ms.Drain():
            return ev.DrainWanted(m.reason, m.at_once)
        case ms.SaveWanted():
            return ev.SaveWanted()
        case ms.Warned():
            return ev.EndNear(m.name)
    return None


def message_of(c: ev.Command) -> tuple[str, ms.Message] | None:
    """Receiver and message of a command that carries no payload; None if it needs more than a message."""
    match c:
        case ev.Play():
            return c.worker, ms.Play(c.trajectory, c.issue, c.task, c.seed, c.sample_seed)
        case ev.CancelPlay():
            return c.worker, ms.Cancel(c.trajectory, c.issue, c.reason)
        case ev.AbortRequest():
            return c.engine, ms.Abort(c.request)
        case ev.Adopt():
            return c.relay, ms.Adopt(*c.weights)
        case ev.PublishAgain():
            return c.trainer, ms.PublishAgain(*c.weights)
        case ev.OfferTransfer():
            return c.source, ms.TransferOffer(c.epoch, *c.weights, c.size)
        case ev.JoinTransfer():
            return c.target, ms.TransferJoin(c.epoch, *c.weights, c.rank, c.size, c.host, c.port, c.secret)
        case ev.Install():
            return c.engine, ms.Install(*c.weights)
    return None
