"""The protocol between a worker and an environment's process. Owns the structs and their framing; no processes.

Length-prefixed msgpack over a socket pair. The worker decodes answers only into these types, so a misbehaving
environment can end its own trajectory but can't run code in the worker.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from rollart_hpc.config.schema import Trouble

MAX_ANSWER_BYTES = 32 << 20
_LENGTH_BYTES = 4


class Setup(msgspec.Struct, tag=True):
    """The first message to a process: which environment it runs."""

    environment: str
    params: dict[str, Any]
    trouble: Trouble


class Reset(msgspec.Struct, tag=True):
    seed: int
    trouble_seed: int


class Step(msgspec.Struct, tag=True):
    response: str


class Finish(msgspec.Struct, tag=True):
    """The trajectory is cut short: report its outcome."""


class Observed(msgspec.Struct, tag=True):
    """The answer to every request. `outcome` is set when the trajectory ends."""

    observation: str
    done: bool
    outcome: dict[str, Any] | None = None


class Raised(msgspec.Struct, tag=True):
    detail: str
    trace: str = ""


Request = Union[Reset, Step, Finish]
Answer = Union[Observed, Raised]


class Garbage(Exception):
    """The data received is not a valid message."""


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()  # numpy scalars and arrays
    raise TypeError(f"{type(value).__name__} can't be sent")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_requests: msgspec.msgpack.Decoder[Request | Setup] = msgspec.msgpack.Decoder(Union[Setup, Reset, Step, Finish])
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """Converts to types that a message can carry; raises TypeError if that is not possible."""
    converted: dict[str, Any] = msgspec.to_builtins(value, enc_hook=_plain)
    return converted


def pack(message: Setup | Request | Answer) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class Unpacker:
    """Collects bytes until messages are complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        whole: list[bytes] = []
        while len(self._buffer) >= _LENGTH_BYTES:
            length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if length > MAX_ANSWER_BYTES:
                raise Garbage(f"its answer has {length} bytes, more than the limit of {MAX_ANSWER_BYTES}")
            end = _LENGTH_BYTES + length
            if len(self._buffer) < end:
                break
            whole.append(bytes(self._buffer[_LENGTH_BYTES:end]))
            del self._buffer[:end]
        return whole


def read_request(body: bytes) -> Request | Setup:
    return _requests.decode(body)


def read_answer(body: bytes) -> Answer:
    try:
        return _answers.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Garbage(f"its answer does not parse: {error}") from None
