"""What the launcher and the preloaded process (`roles.preloaded`) say to each other. Owns the structs, no process.

One message per packet of a SEQPACKET socket; every order is answered before the next one is read. With `Fork` come
two descriptors, the child's standard output and standard error.
"""

from __future__ import annotations

from typing import Union

import msgspec

MAX_ORDER_BYTES = 1 << 17


class Fork(msgspec.Struct, tag=True):
    """Run this module as `python -m` would, with these variables on top of the environment."""

    module: str
    arguments: list[str]
    variables: dict[str, str]


class Reap(msgspec.Struct, tag=True):
    """A child that has ended or was killed."""

    pid: int


class Forked(msgspec.Struct, tag=True):
    pid: int


class Reaped(msgspec.Struct, tag=True):
    """`code` as in subprocess: negative for a signal."""

    code: int


read_order: msgspec.msgpack.Decoder[Fork | Reap] = msgspec.msgpack.Decoder(Union[Fork, Reap])
read_answer: msgspec.msgpack.Decoder[Forked | Reaped] = msgspec.msgpack.Decoder(Union[Forked, Reaped])
write = msgspec.msgpack.encode
