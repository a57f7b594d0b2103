"""The payloads that pass through the controller. Owns tokens and transcripts by trajectory; never reads them.

The core handles trajectories by name. This store holds their payloads until the core sends `Release`.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import msgspec
from msgspec import structs

from rollart_hpc.files import write_atomic
from rollart_hpc.types import Frame
from rollart_hpc.wire.messages import Chunk, ChunkItem, Ended, Generated, Scored, TurnWanted, decode, encode

TRANSCRIPT, RECORD = 0, slice(1, 4)  # frames of an Ended message


class Payloads:
    def __init__(self) -> None:
        self.turns: dict[str, tuple[TurnWanted, list[Frame]]] = {}
        self.answers: dict[str, tuple[Generated, list[Frame]]] = {}
        self.ended: dict[str, tuple[Ended, list[Frame]]] = {}
        self.asked_again: dict[str, tuple[int, int]] = {}  # issue and turn that must come with all tokens

    def release(self, trajectory: str) -> None:
        for store in (self.turns, self.answers, self.ended, self.asked_again):
            store.pop(trajectory, None)

    def keep_only(self, trajectories: Container[str]) -> None:
        """After a restore: drop payloads that the core does not need."""
        for trajectory in [name for name in self.ended if name not in trajectories]:
            self.release(trajectory)

    def scored(self, message: Scored) -> None:
        """Keep the rewards of turns with their trajectory, also in checkpoints."""
        if message.turn_rewards and message.trajectory in self.ended:
            ended, frames = self.ended[message.trajectory]
            self.ended[message.trajectory] = (structs.replace(ended, turn_rewards=message.turn_rewards), frames)

    def chunk_item(
        self, trajectory: str, group: int, task: str, reward: float, success: bool
    ) -> tuple[ChunkItem, list[Frame]]:
        ended, frames = self.ended[trajectory]
        shape = ended.sample_lengths, success, ended.is_cut, ended.states, ended.turn_rewards
        item = ChunkItem(trajectory, group, task, reward, *shape)
        return item, frames[RECORD]

    def save(self, path: Path, trajectories: list[str]) -> None:
        """Write the payloads of buffered trajectories: one list of byte strings each, header first."""
        kept = [self.ended[name] for name in trajectories]
        content = msgspec.msgpack.encode([[encode(ended), *map(bytes, frames)] for ended, frames in kept])
        write_atomic(path, content)

    def load(self, path: Path) -> None:
        rows = msgspec.msgpack.decode(path.read_bytes(), type=list[list[bytes]])
        for header, *frames in rows:
            ended = decode(header)
            assert isinstance(ended, Ended)
            self.ended[ended.trajectory] = (ended, list(frames))


def chunk_frames(
    items: list[tuple[ChunkItem, list[Frame]]], step: int, index: int, last: bool
) -> tuple[Chunk, list[Frame]]:
    frames = [frame for _, record in items for frame in record]
    return Chunk(step, index, [item for item, _ in items], last), frames
