"""The loop of a trainer process, without a process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollart_hpc.errors import SiteError
from rollart_hpc.observe.trace import Tracer
from rollart_hpc.trainers.chunks import groups_of
from rollart_hpc.trainers.contract import StepResult
from rollart_hpc.trainers.service import Leader
from rollart_hpc.trainers.world import World
from rollart_hpc.types import Frame, TokenRecord, TrainGroup, WeightsId
from rollart_hpc.wire.link import LinkClosed
from rollart_hpc.wire.messages import (
    BatchWanted,
    Chunk,
    ChunkItem,
    Committed,
    Message,
    Published,
    Save,
    Saved,
    Stop,
    TransferOffer,
    WhoAreYou,
)


def make_chunk(step: int, index: int, last: bool, groups: tuple[int, ...] = (0,)) -> tuple[Chunk, list[Frame]]:
    items, frames = [], []
    for group in groups:
        for member in range(2):
            items.append(ChunkItem(f"{group}.{member}", group, "task", float(member), [2, 3]))
            record = TokenRecord(
                np.arange(5, dtype=np.int32), np.zeros(5, np.float32), np.array([-1, 0, -1, 0, 0], np.int32)
            )
            frames += record.to_frames()
    return Chunk(step, index, items, last), frames


class FakeTrainer:
    def __init__(self) -> None:
        self.version = 4
        self.digest = "d4"
        self.deeds: list[Any] = []

    def accumulate(self, groups: list[TrainGroup], *, last: bool) -> None:
        self.deeds.append([group.group for group in groups])

    def discard(self) -> None:
        self.deeds.append("discard")

    def step(self) -> StepResult:
        self.deeds.append("step")
        self.version += 1
        parent, self.digest = self.digest, f"d{self.version}"
        return StepResult(self.version, parent, self.digest, {"loss": 0.5})

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "w", torch.zeros(2)

    def save(self, directory: Path) -> None:
        if "full" in str(directory):
            raise SiteError("the disk is full")
        self.deeds.append(str(directory))


class FakePublisher:
    def __init__(self) -> None:
        self.offers: list[TransferOffer] = []
        self.published: list[WeightsId] = []

    def publish(self, weights_id: WeightsId, named: Iterator[tuple[str, torch.Tensor]], digest: str) -> int:
        self.published.append(weights_id)
        return sum(tensor.numel() for _, tensor in named)

    def offer(self, offer: TransferOffer) -> None:
        self.offers.append(offer)

    def is_sending(self) -> bool:
        return False


class FakeLink:
    clock_offset_s = 0.0

    def __init__(self, *script: tuple[Message, list[Frame]] | Message, at_once: bool = False) -> None:
        self.at_once = at_once  # all of it has arrived before the first is read
        self.script = deque((item, []) if isinstance(item, Message) else item for item in script)
        self.sent: list[Message] = []
        self.num_updates = 0

    def recv(self, timeout_s: float | None = None) -> tuple[Message, list[Frame]] | None:
        if timeout_s is not None and not (self.at_once and self.script):
            return None
        return self.script.popleft() if self.script else (Stop("over"), [])

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def update_hello(self, *, version: int) -> None:
        assert isinstance(self.sent[-1], Committed), "only what the controller was told may be repeated"
        assert version == self.sent[-1].version
        self.num_updates += 1


def run(
    *script: tuple[Message, list[Frame]] | Message, at_once: bool = False
) -> tuple[FakeTrainer, FakePublisher, list[Message]]:
    trainer, publisher, link = FakeTrainer(), FakePublisher(), FakeLink(*script, at_once=at_once)
    world, version = World(0, 1, torch.device("cpu")), trainer.version
    Leader(trainer, world, link, publisher, Tracer(None, "t"), attempt=2).run()  # type: ignore[arg-type]
    assert link.num_updates == trainer.version - version
    return trainer, publisher, link.sent


def kinds(sent: list[Message]) -> list[str]:
    return [type(message).__name__ for message in sent]


def test_it_publishes_what_it_starts_with_and_asks_for_a_batch() -> None:
    _, publisher, sent = run()
    assert publisher.published == [WeightsId(2, 4)]
    assert isinstance(sent[0], Published)
    assert (sent[0].attempt, sent[0].version, sent[0].num_bytes) == (2, 4, 2)
    assert sent[1:] == [BatchWanted(4)]


def test_a_step_is_committed_before_it_is_published() -> None:
    trainer, publisher, sent = run(make_chunk(4, 0, False, (0, 1)), make_chunk(4, 1, True, (2,)))
    assert trainer.deeds == [[0, 1], [2], "step"]
    assert kinds(sent) == ["Published", "BatchWanted", "Committed", "Published", "BatchWanted"]
    committed = sent[2]
    assert isinstance(committed, Committed)
    assert (committed.step, committed.version) == (4, 5)
    assert (committed.parent_digest, committed.digest, committed.metrics) == ("d4", "d5", {"loss": 0.5})
    assert committed.wait_s >= 0 and committed.train_s >= 0
    assert publisher.published[-1] == WeightsId(2, 5)
    assert sent[-1] == BatchWanted(5)


def test_chunks_that_came_while_the_trainer_was_busy_are_trained_as_one() -> None:
    script = make_chunk(4, 0, False, (0, 1)), make_chunk(4, 1, False, (2,)), make_chunk(4, 2, True, (3,))
    trainer, _, sent = run(*script, at_once=True)
    assert trainer.deeds == [[0, 1, 2, 3], "step"]
    assert kinds(sent).count("Committed") == 1


def test_a_batch_that_begins_anew_drops_what_waits_of_the_first() -> None:
    script = make_chunk(4, 0, False, (7,)), make_chunk(4, 0, False, (8,)), make_chunk(4, 1, True, (9,))
    trainer, _, _ = run(*script, at_once=True)
    assert trainer.deeds == [[8, 9], "step"]


def test_a_lost_connection_drops_what_waits() -> None:
    script = make_chunk(4, 0, False, (7,)), WhoAreYou(), make_chunk(4, 0, True, (8,))
    trainer, _, sent = run(*script, at_once=True)
    assert trainer.deeds == [[8], "step"]
    assert kinds(sent)[2:4] == ["Published", "BatchWanted"]


def test_it_saves_before_it_trains_what_waits() -> None:
    trainer, _, sent = run(make_chunk(4, 0, False), Save(4, "/s"), make_chunk(4, 1, True), at_once=True)
    assert trainer.deeds == ["/s/trainer", [0], "step"]
    assert Saved(4, "") in sent


def test_what_comes_after_the_end_of_a_batch_belongs_to_the_next_version() -> None:
    trainer, _, sent = run(make_chunk(4, 0, True), Save(5, "/s"), make_chunk(5, 0, True), at_once=True)
    assert trainer.deeds == [[0], "step", "/s/trainer", [0], "step"]
    assert Saved(5, "") in sent


def test_a_stop_leaves_what_waits_untrained() -> None:
    trainer, _, _ = run(make_chunk(4, 0, False), Stop("over"), at_once=True)
    assert trainer.deeds == []


@pytest.mark.parametrize("step", [3, 5])
def test_chunks_of_other_steps_are_ignored(step: int) -> None:
    trainer, _, sent = run(make_chunk(step, 0, True))
    assert trainer.deeds == []
    assert kinds(sent) == ["Published", "BatchWanted"]


def test_the_rest_of_a_batch_that_was_given_up_is_ignored() -> None:
    trainer, _, _ = run(make_chunk(4, 1, False), make_chunk(4, 0, True))
    assert trainer.deeds == [[0], "step"]


def test_a_first_chunk_begins_the_step_anew() -> None:
    trainer, _, sent = run(make_chunk(4, 0, False, (7,)), make_chunk(4, 0, False, (8,)), make_chunk(4, 1, True, (9,)))
    assert trainer.deeds == [[7], "discard", [8], [9], "step"]
    assert kinds(sent).count("Committed") == 1


def test_a_missing_chunk_is_an_error() -> None:
    with pytest.raises(SiteError, match="chunk 2 came, 1 was expected"):
        run(make_chunk(4, 0, False), make_chunk(4, 2, True))


def test_it_saves_in_its_own_part_and_answers() -> None:
    trainer, _, sent = run(Save(4, "/somewhere/step_4.tmp"))
    assert trainer.deeds == ["/somewhere/step_4.tmp/trainer"]
    assert sent[-1] == Saved(4, "")


def test_it_saves_in_mid_step() -> None:
    trainer, _, _ = run(make_chunk(4, 0, False), Save(4, "/s"), make_chunk(4, 1, True))
    assert trainer.deeds == [[0], "/s/trainer", [0], "step"]


@pytest.mark.parametrize(("save", "problem"), [(Save(3, "/s"), "version 4, not 3"), (Save(4, "/full"), "disk is full")])
def test_a_save_that_fails_is_answered_and_the_run_goes_on(save: Save, problem: str) -> None:
    trainer, _, sent = run(save, make_chunk(4, 0, True))
    answer = sent[2]
    assert isinstance(answer, Saved)
    assert problem in answer.error
    assert trainer.version == 5


def test_offers_go_to_the_publisher() -> None:
    offer = TransferOffer(epoch=1, attempt=2, version=4, size=3)
    assert run(offer)[1].offers == [offer]


def test_a_lost_connection_before_the_first_step_starts_the_batch_over() -> None:
    trainer, _, sent = run(make_chunk(4, 0, False), WhoAreYou(), make_chunk(4, 0, True))
    assert trainer.deeds == [[0], "discard", [0], "step"]
    assert kinds(sent)[2:4] == ["Published", "BatchWanted"]


def test_a_lost_connection_right_after_a_step_ends_the_process() -> None:
    with pytest.raises(LinkClosed, match="connection to the controller broke at version 5"):
        run(make_chunk(4, 0, True), WhoAreYou())


@pytest.mark.parametrize("sign", [make_chunk(5, 0, False), Save(5, "/s")])
def test_a_lost_connection_is_survived_once_the_controller_is_known_to_have_the_step(sign: Any) -> None:
    trainer, _, sent = run(make_chunk(4, 0, True), sign, WhoAreYou(), make_chunk(5, 0, True))
    assert trainer.version == 6
    assert kinds(sent)[-5:] == ["Published", "BatchWanted", "Committed", "Published", "BatchWanted"]


def test_items_become_groups_and_samples() -> None:
    groups = groups_of(*make_chunk(0, 0, True, (3, 1)))
    assert [group.group for group in groups] == [3, 1]
    first, second = groups[0].samples[:2]
    assert (first.trajectory, second.trajectory) == ("3.0", "3.0")
    assert first.record.ids.tolist() == [0, 1]
    assert second.record.ids.tolist() == [2, 3, 4]
    assert second.record.versions.tolist() == [-1, 0, 0]
    assert [s.reward for s in groups[0].samples] == [0.0, 0.0, 1.0, 1.0]


def test_frames_that_do_not_match_their_items_are_an_error() -> None:
    chunk, frames = make_chunk(0, 0, True)
    with pytest.raises(SiteError, match="5 frames for 2 items"):
        groups_of(chunk, frames[:-1])
    with pytest.raises(SiteError, match=r"trajectory 0\.1: ids, logprobs and versions have different lengths"):
        groups_of(chunk, [*frames[:-1], frames[-1][:4]])
    short = [*frames[:3], *(frame[:8] for frame in frames[3:])]
    with pytest.raises(SiteError, match=r"trajectory 0\.1: 2 tokens, expected 5"):
        groups_of(chunk, short)
