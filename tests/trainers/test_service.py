"""The loop of a trainer process, without a process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollart_hpc.errors import SiteError
from rollart_hpc.observe.trace import Tracer
from rollart_hpc.trainers.chunks import Inbox, groups_of
from rollart_hpc.trainers.contract import Keep, StepResult
from rollart_hpc.trainers.publish import Copied
from rollart_hpc.trainers.service import Follower, Leader
from rollart_hpc.trainers.world import World
from rollart_hpc.types import Frame, TokenRecord, TrainGroup, WeightsId
from rollart_hpc.wire.link import LinkClosed
from rollart_hpc.wire.messages import (
    BatchWanted,
    Chunk,
    ChunkItem,
    Committed,
    Message,
    PublishAgain,
    Published,
    Save,
    Saved,
    Stop,
    TransferOffer,
    WhoAreYou,
)

LATER = None  # in a script: nothing else is here yet, the trainer goes on with what it has
Item = tuple[Message, list[Frame]] | Message | None


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

    def accumulate(self, groups: list[TrainGroup], *, last: bool = False) -> None:
        self.deeds.append([group.group for group in groups])
        self.was_last = last

    def discard(self) -> None:
        self.deeds.append("discard")

    def step(self, keep: Keep | None = None) -> StepResult:
        assert self.was_last, "the trainer was told that nothing more comes"
        self.deeds.append("step")
        self.version += 1
        parent, self.digest = self.digest, f"d{self.version}"
        if keep is not None:
            assert keep(self.export()) == self.digest
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

    def publish(self, weights_id: WeightsId, named: Iterable[tuple[str, torch.Tensor]]) -> Copied:
        self.published.append(weights_id)
        return Copied(sum(tensor.numel() for _, tensor in named), f"d{weights_id.version}")

    def offer(self, offer: TransferOffer) -> None:
        self.offers.append(offer)

    def is_sending(self) -> bool:
        return False


class FakeLink:
    """Messages are here at once, up to a LATER in the script; the last one is Stop."""

    clock_offset_s = 0.0

    def __init__(self, *script: Item) -> None:
        self.script = deque((item, []) if isinstance(item, Message) else item for item in script)
        self.sent: list[Message] = []
        self.num_updates = 0

    def recv(self, timeout_s: float | None = None) -> tuple[Message, list[Frame]] | None:
        if timeout_s is None:
            while self.script and self.script[0] is LATER:
                self.script.popleft()
            return self.script.popleft() if self.script else (Stop("over"), [])
        assert timeout_s == 0.0, "the trainer looks, it does not wait"
        return self.script.popleft() if self.script else None

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def update_hello(self, *, version: int) -> None:
        assert isinstance(self.sent[-1], Committed), "only what the controller was told may be repeated"
        assert version == self.sent[-1].version
        self.num_updates += 1


def run(*script: Item) -> tuple[FakeTrainer, FakePublisher, list[Message]]:
    trainer, publisher, link = FakeTrainer(), FakePublisher(), FakeLink(*script)
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
    trainer, publisher, sent = run(make_chunk(4, 0, False, (0, 1)), LATER, make_chunk(4, 1, True, (2,)))
    assert trainer.deeds == [[0, 1], [2], "step"]
    assert kinds(sent) == ["Published", "BatchWanted", "Committed", "Published", "BatchWanted"]
    committed = sent[2]
    assert isinstance(committed, Committed)
    assert (committed.step, committed.version) == (4, 5)
    assert (committed.parent_digest, committed.digest, committed.metrics) == ("d4", "d5", {"loss": 0.5})
    assert committed.wait_s >= 0 and committed.train_s >= 0
    assert publisher.published[-1] == WeightsId(2, 5)
    assert sent[-1] == BatchWanted(5)


def test_it_records_what_a_step_took_once_the_step_is_published() -> None:
    class Recorder:
        def take(self, groups: list[TrainGroup], *, starts: bool) -> None:
            seen.append(([group.group for group in groups], starts))

        def trained(self, step: int) -> None:
            assert len(publisher.published) == 2 and link.sent[-1] == BatchWanted(5)
            seen.append(step)

    seen: list[object] = []
    publisher, link = FakePublisher(), FakeLink(make_chunk(4, 0, False, (0, 1)), LATER, make_chunk(4, 1, True, (2,)))
    world, recorder = World(0, 1, torch.device("cpu")), Recorder()
    arguments = FakeTrainer(), world, link, publisher, Tracer(None, "t")
    Leader(*arguments, attempt=2, recorder=recorder).run()  # type: ignore[arg-type]
    assert seen == [([0, 1], True), ([2], False), 4]


def test_chunks_that_came_meanwhile_are_taken_up_as_one() -> None:
    chunks = [make_chunk(4, index, index == 4, (index,)) for index in range(5)]
    trainer, _, sent = run(chunks[0], LATER, *chunks[1:3], LATER, *chunks[3:], make_chunk(5, 0, True, (9,)))
    assert trainer.deeds == [[0], [1, 2], [3, 4], "step", [9], "step"]
    assert kinds(sent).count("Committed") == 2


@pytest.mark.parametrize("step", [3, 5])
def test_chunks_of_other_steps_are_ignored(step: int) -> None:
    trainer, _, sent = run(make_chunk(step, 0, True))
    assert trainer.deeds == []
    assert kinds(sent) == ["Published", "BatchWanted"]


def test_the_rest_of_a_batch_that_was_given_up_is_ignored() -> None:
    trainer, _, _ = run(make_chunk(4, 1, False), make_chunk(4, 0, True))
    assert trainer.deeds == [[0], "step"]


def test_a_first_chunk_begins_the_step_anew() -> None:
    again = [make_chunk(4, 0, False, (8,)), make_chunk(4, 1, True, (9,))]
    trainer, _, sent = run(make_chunk(4, 0, False, (6,)), make_chunk(4, 1, False, (7,)), LATER, *again)
    assert trainer.deeds == [[6, 7], "discard", [8, 9], "step"]
    assert kinds(sent).count("Committed") == 1


def test_a_batch_begun_anew_while_it_waits_in_the_inbox_is_never_trained() -> None:
    again = [make_chunk(4, 0, False, (8,)), make_chunk(4, 1, True, (9,))]
    trainer, _, _ = run(make_chunk(4, 0, False, (6,)), make_chunk(4, 1, False, (7,)), *again)
    assert trainer.deeds == [[8, 9], "step"]


def test_what_was_trained_is_forgotten_even_if_the_rest_still_waits() -> None:
    old = [make_chunk(4, 0, False, (6,)), LATER, make_chunk(4, 1, False, (7,))]
    trainer, _, _ = run(*old, make_chunk(4, 0, True, (8,)))
    assert trainer.deeds == [[6], "discard", [8], "step"]


@pytest.mark.parametrize("when", [(), (LATER,)])
def test_a_missing_chunk_is_an_error(when: tuple[None, ...]) -> None:
    with pytest.raises(SiteError, match="received chunk 2, expected 1"):
        run(make_chunk(4, 0, False), *when, make_chunk(4, 2, True))


def test_it_saves_in_its_own_part_and_answers() -> None:
    trainer, _, sent = run(Save(4, "/somewhere/step_4.tmp"))
    assert trainer.deeds == ["/somewhere/step_4.tmp/trainer"]
    assert sent[-1] == Saved(4, "")


def test_it_saves_in_mid_step() -> None:
    trainer, _, _ = run(make_chunk(4, 0, False), LATER, Save(4, "/s"), make_chunk(4, 1, True))
    assert trainer.deeds == [[0], "/s/trainer", [0], "step"]


def test_a_checkpoint_does_not_wait_for_the_chunks_before_it() -> None:
    trainer, _, sent = run(make_chunk(4, 0, False, (0,)), Save(4, "/s"), make_chunk(4, 1, True, (1,)))
    assert trainer.deeds == ["/s/trainer", [0, 1], "step"]
    assert Saved(4, "") in sent


@pytest.mark.parametrize("when", [(), (LATER,)])
def test_weights_are_published_again_between_chunks(when: tuple[None, ...]) -> None:
    chunks = make_chunk(4, 0, False, (0,)), make_chunk(4, 1, True, (1,))
    trainer, publisher, sent = run(chunks[0], *when, PublishAgain(2, 4), PublishAgain(2, 3), chunks[1])
    assert publisher.published == [WeightsId(2, 4), WeightsId(2, 4), WeightsId(2, 5)]
    assert trainer.deeds[-1] == "step"
    assert kinds(sent).count("Committed") == 1


def test_it_stops_without_training_what_waits() -> None:
    trainer, _, sent = run(make_chunk(4, 0, False), Stop("enough"))
    assert trainer.deeds == []
    assert kinds(sent) == ["Published", "BatchWanted"]


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
    trainer, _, sent = run(make_chunk(4, 0, False), LATER, WhoAreYou(), make_chunk(4, 0, True))
    assert trainer.deeds == [[0], "discard", [0], "step"]
    assert kinds(sent)[2:4] == ["Published", "BatchWanted"]


def test_a_lost_connection_forgets_the_inbox() -> None:
    lost = make_chunk(4, 0, False, (6,)), make_chunk(4, 1, False, (7,)), WhoAreYou()
    trainer, _, _ = run(*lost, make_chunk(4, 2, True, (8,)), LATER, make_chunk(4, 0, True, (9,)))
    assert trainer.deeds == [[9], "step"]


def test_a_lost_connection_right_after_a_step_ends_the_process() -> None:
    with pytest.raises(LinkClosed, match="connection to the controller broke at version 5"):
        run(make_chunk(4, 0, True), WhoAreYou())


@pytest.mark.parametrize("sign", [make_chunk(5, 0, False), Save(5, "/s")])
def test_a_lost_connection_is_survived_once_the_controller_is_known_to_have_the_step(sign: Any) -> None:
    trainer, _, sent = run(make_chunk(4, 0, True), sign, WhoAreYou(), make_chunk(5, 0, True))
    assert trainer.version == 6
    assert kinds(sent)[-5:] == ["Published", "BatchWanted", "Committed", "Published", "BatchWanted"]


class FakeWorld:
    """What rank 0 passes on is what the others get."""

    size = 2
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.passed_on: list[list[Frame]] = []

    def broadcast(self, frames: list[Frame] | None = None) -> list[Frame]:
        if frames is None:
            return self.passed_on.pop(0)
        self.passed_on.append(frames)
        return frames


def test_other_ranks_do_the_same_in_the_same_order() -> None:
    script = [
        make_chunk(4, 0, False, (0,)), make_chunk(4, 1, False, (1,)), LATER, make_chunk(4, 2, False, (2,)),
        Save(4, "/s"), PublishAgain(2, 4), WhoAreYou(), LATER, make_chunk(4, 0, False, (3,)), LATER,
        make_chunk(4, 1, True, (4,)), make_chunk(5, 0, True, (5,)), Stop("over"),
    ]  # fmt: skip
    first, second, world = FakeTrainer(), FakeTrainer(), FakeWorld()
    leader = Leader(first, world, FakeLink(*script), FakePublisher(), Tracer(None, "t"), attempt=2)  # type: ignore[arg-type]
    leader.run()
    Follower(second, world).run()  # type: ignore[arg-type]
    assert first.deeds == second.deeds
    assert first.deeds == [[0, 1], "/s/trainer", "discard", [3], [4], "step", [5], "step"]
    assert not world.passed_on


def test_an_inbox_joins_chunks_and_their_frames() -> None:
    inbox = Inbox()
    assert inbox.take() is None
    parts = [make_chunk(4, 0, False, (0,)), make_chunk(4, 1, True, (1, 2))]
    assert all(inbox.put(*part) for part in parts)
    assert inbox.is_complete
    part = inbox.take()
    assert part is not None
    chunk, frames = part
    assert (chunk.step, chunk.index, chunk.last) == (4, 0, True)
    assert [group.group for group in groups_of(chunk, frames)] == [0, 1, 2]
    assert inbox.take() is None and not inbox.is_complete


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
