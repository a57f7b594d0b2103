"""Messages between the launcher and the preloaded process (`roles.preloaded`). Owns the structs; starts no process.

One message per packet of a SEQPACKET socket. Each order is answered before the next one is read. `Fork` carries two
file descriptors, the child's standard output and standard error.
"""

from __future__ import annotations

from typing import Union

import msgspec

MAX_ORDER_BYTES = 1 << 17


class Fork(msgspec.Struct, tag=True):
    """Fork a child that runs this module like `python -m`, with these variables added to the environment."""

    module: str
    arguments: list[str]
    variables: dict[str, str]


class Reap(msgspec.Struct, tag=True):
    """Reap a child that has ended or was killed."""

    pid: int


class Forked(msgspec.Struct, tag=True):
    pid: int


class Reaped(msgspec.Struct, tag=True):
    """`code` is as in subprocess: negative for a signal."""

    code: int


read_order: msgspec.msgpack.Decoder[Fork | Reap] = msgspec.msgpack.Decoder(Union[Fork, Reap])
read_answer: msgspec.msgpack.Decoder[Forked | Reaped] = msgspec.msgpack.Decoder(Union[Forked, Reaped])
write = msgspec.msgpack.encode
