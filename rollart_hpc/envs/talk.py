"""What a worker and an environment's process say to each other. Owns the structs and their framing; no processes.

Length-prefixed msgpack over a socket pair. The worker decodes answers into these types and nothing else, so
an environment gone wild can end its own trajectory but not run code in the worker.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from rollart_hpc.config.schema import Trouble

MAX_ANSWER_BYTES = 32 << 20
_LENGTH_BYTES = 4


class Setup(msgspec.Struct, tag=True):
    """First word to a process: which environment it will play."""

    environment: str
    params: dict[str, Any]
    trouble: Trouble


class Reset(msgspec.Struct, tag=True):
    seed: int
    trouble_seed: int


class Step(msgspec.Struct, tag=True):
    response: str


class Finish(msgspec.Struct, tag=True):
    """The trajectory is cut short: tell how it stands."""


class Observed(msgspec.Struct, tag=True):
    """The answer to all of them. `outcome` comes with the end."""

    observation: str
    done: bool
    outcome: dict[str, Any] | None = None


class Raised(msgspec.Struct, tag=True):
    detail: str
    trace: str = ""


Request = Union[Reset, Step, Finish]
Answer = Union[Observed, Raised]


class Garbage(Exception):
    """What arrived is none of our structs."""


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()  # numpy's scalars and arrays
    raise TypeError(f"{type(value).__name__} can't be sent")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_requests: msgspec.msgpack.Decoder[Request | Setup] = msgspec.msgpack.Decoder(Union[Setup, Reset, Step, Finish])
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """The same with nothing but what a message can carry; TypeError if that is not possible."""
    converted: dict[str, Any] = msgspec.to_builtins(value, enc_hook=_plain)
    return converted


def pack(message: Setup | Request | Answer) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class Unpacker:
    """Collects bytes until messages are whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        whole: list[bytes] = []
        while len(self._buffer) >= _LENGTH_BYTES:
            length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if length > MAX_ANSWER_BYTES:
                raise Garbage(f"an answer of {length} bytes, at most {MAX_ANSWER_BYTES} are taken")
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
        raise Garbage(f"an answer that does not parse: {error}") from None
