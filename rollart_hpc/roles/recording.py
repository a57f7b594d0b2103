"""What the core was told and what it said, event by event, in a file: a run can be replayed from it.

    first line   the format and its version
    records      length, CRC-32 and content in msgpack: the head, then an event and the core's commands each

The head has what a core is made from: rules, attempt and checkpoint. The core has no clock and no random numbers of its
own, so a fresh one must say the same (`replay`). A recording that would exceed its limit ends with an empty record.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc import __version__
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.flow import events as ev
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.rules import FlowRules

FORMAT = 1
_MAGIC = b"rollart-hpc recording "
_FRAME = struct.Struct("<II")  # length and CRC-32
_BUFFER = 1 << 20
_FULL = b""


class Head(msgspec.Struct):
    package: str
    attempt: int
    rules: FlowRules
    saved: dict[str, Any] | None


class Replayed(msgspec.Struct):
    """A recording whose commands were all said again."""

    package: str  # version that recorded it
    attempt: int
    events: int = 0
    commands: int = 0
    version: int = 0  # of the policy at the end
    is_full: bool = False  # its limit was reached: the run went on


class Recorder:
    def __init__(self, path: Path, core: Core, saved: dict[str, Any] | None = None, limit: int = 1 << 40) -> None:
        """Records `core`, which has handled nothing yet."""
        self._limit, self._size = limit, 0
        self._encoder = msgspec.msgpack.Encoder()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb", buffering=_BUFFER)
        self._file.write(b"%s%d\n" % (_MAGIC, FORMAT))
        self._write(self._encoder.encode(Head(__version__, core.attempt, core.rules, saved)))
        self.flush()
        core.tap = self._add

    def _add(self, event: ev.Event, commands: list[ev.Command]) -> None:
        if self._file.closed:
            return
        content = self._encoder.encode((event, [_plain(command) for command in commands]))
        if self._size + len(content) > self._limit:
            self._write(_FULL)
            self._file.close()
        else:
            self._write(content)

    def _write(self, content: bytes) -> None:
        self._size += len(content) + _FRAME.size
        self._file.write(_FRAME.pack(len(content), zlib.crc32(content)) + content)

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def replay(path: Path) -> Replayed:
    """Feed a fresh core with the recorded events. Raises at the first command that differs from the recorded one."""
    records = _records(path)
    head = _head(path, next(records, b""))
    core = Core(head.rules, head.attempt, head.saved)
    decoder = msgspec.msgpack.Decoder(tuple[ev.Event, list[Any]])
    found = Replayed(head.package, head.attempt)
    for content in records:
        if content == _FULL:
            found.is_full = True
            break
        event, recorded = _decoded(path, decoder, content)
        said = msgspec.msgpack.decode(msgspec.msgpack.encode([_plain(command) for command in core.handle(event)]))
        _compare(found, event, recorded, said)
        found.events += 1
        found.commands += len(said)
    found.version = core.version
    return found


def _plain(command: ev.Command) -> Any:
    """Groups refer to their trajectories and these to their groups: of both only the names are written."""
    if not isinstance(command, ev.SendChunk | ev.RecordStep):
        return command
    plain = {name: getattr(command, name) for name in command.__struct_fields__}
    groups = [[group.id, [member.id for member in group.members]] for group in command.groups]
    return {"type": type(command).__name__, **plain, "groups": groups}


def _compare(found: Replayed, event: ev.Event, recorded: list[Any], said: list[Any]) -> None:
    if recorded == said:
        return
    pairs = ((a, b) for a, b in zip([*recorded, None], [*said, None], strict=False) if a != b)
    before, now = next(pairs, (recorded, said))
    raise SiteError(
        f"event {found.events} ({event}): the run said {before or 'nothing more'}, and now the core says "
        f"{now or 'nothing more'}",
        f"the recording is of version {found.package}, this is {__version__}: if they differ, replay it with that one; "
        "otherwise something besides events decides, or the file was changed",
    )


# --- reading -------------------------------------------------------------------------------------


def _records(path: Path) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist", "record a run with observe.record_bytes=1000000000") from None
    with file:
        first = file.readline(len(_MAGIC) + 20)
        if not first.startswith(_MAGIC):
            raise UserError(
                f"{path} is not a recording of rollart-hpc", "name the directory of a run that was recorded"
            )
        if first != b"%s%d\n" % (_MAGIC, FORMAT):
            what = f"{path} has format {first[len(_MAGIC) :].strip().decode(errors='replace')}, and this is {FORMAT}"
            raise UserError(what, "replay it with the version that recorded it")
        count = 0
        while frame := file.read(_FRAME.size):
            length, checksum = _FRAME.unpack(frame) if len(frame) == _FRAME.size else (-1, 0)
            content = file.read(length) if length >= 0 else b""
            if len(content) != length or zlib.crc32(content) != checksum:
                raise _torn(path, f"record {count} is cut off or damaged; those before it are right")
            yield content
            count += 1


def _head(path: Path, content: bytes) -> Head:
    try:
        return msgspec.msgpack.decode(content, type=Head)
    except msgspec.DecodeError as error:
        raise _torn(path, f"it has no head: {error}") from None


def _decoded(path: Path, decoder: msgspec.msgpack.Decoder[Any], content: bytes) -> tuple[ev.Event, list[Any]]:
    try:
        event, recorded = decoder.decode(content)
    except msgspec.DecodeError as error:
        raise UserError(f"{path} has an event that this version does not know: {error}",
                        "replay it with the version that recorded it") from None  # fmt: skip
    return event, recorded


def _torn(path: Path, what: str) -> SiteError:
    return SiteError(
        f"{path} is torn: {what}", "a controller that was killed leaves such a file; its run is not at fault"
    )
