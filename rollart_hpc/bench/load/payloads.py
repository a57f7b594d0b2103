"""Payloads of the load's messages, and the number of turns of a trajectory. Owns sizes; the bytes have no meaning."""

from __future__ import annotations

import struct
import zlib
from functools import cache

import msgspec

from rollart_hpc.config.schema import ObserveConfig
from rollart_hpc.observe.plays import Facts, is_chosen
from rollart_hpc.types import OBSERVED

PROMPT_TOKENS, ANSWER_TOKENS = 256, 64
PROMPT_BYTES, ANSWER_BYTES = 4 * PROMPT_TOKENS, 12 * ANSWER_TOKENS  # an answer has ids, log-probs and versions
TURN_TOKENS = PROMPT_TOKENS + ANSWER_TOKENS
FEWEST_TURNS, MEAN_TURNS, MOST_TURNS = 4, 8, 12
CHARACTERS_PER_TOKEN = 4  # in a transcript
RECORD_BYTES = (CHARACTERS_PER_TOKEN + 12) * TURN_TOKENS  # per turn, in Ended
PROMPT = bytes(PROMPT_BYTES)
FACTS_BYTES = len(msgspec.msgpack.encode(Facts(1 << 30, 2560, 512, 40, 41, False, 0.1, 0.1, 0.1)))
_IDS = bytes(4 * ANSWER_TOKENS)


def num_turns(trajectory: str) -> int:
    return FEWEST_TURNS + zlib.crc32(trajectory.encode()) % (MOST_TURNS + 1 - FEWEST_TURNS)


@cache
def answer_of(version: int) -> tuple[bytes, bytes, bytes]:
    return _IDS, _IDS, struct.pack("<i", version) * ANSWER_TOKENS


@cache
def record_of(turns: int, added_bytes: int = 0) -> tuple[bytes, ...]:
    """The frames of Ended: the transcript, then ids, log-probs and versions of all tokens.

    The versions are those of observed tokens: sampled ones must not be older than the answers, which are not kept.
    """
    tokens = turns * TURN_TOKENS
    zeros, versions = bytes(4 * tokens), struct.pack("<i", OBSERVED) * tokens
    return bytes(CHARACTERS_PER_TOKEN * tokens + added_bytes), zeros, zeros, versions


def kept_bytes(trajectory: str, turns: int, observe: ObserveConfig) -> int:
    """What an env worker adds to a transcript that is kept."""
    if not is_chosen(trajectory, observe.transcripts):
        return 0
    return FACTS_BYTES + (12 * turns * TURN_TOKENS if is_chosen(trajectory, observe.transcript_tokens) else 0)
