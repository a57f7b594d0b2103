"""The trainer's processes against a hub: joining, steps, weights, checkpoints, death."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.files import make_directory
from rollart_hpc.roles.start import run_role
from rollart_hpc.roles.trainer import main
from rollart_hpc.rundir import RunDir
from rollart_hpc.types import Frame, WeightsId
from rollart_hpc.vocabulary import ExitCode
from rollart_hpc.weights.digest import digest
from rollart_hpc.weights.direct import DirectTarget
from rollart_hpc.weights.store import NodeStore
from rollart_hpc.wire import keys
from rollart_hpc.wire.messages import (
    BatchWanted,
    Chunk,
    ChunkItem,
    Committed,
    Hello,
    Message,
    Published,
    Save,
    Saved,
    Stop,
    TransferJoin,
    TransferOffer,
    TransferReady,
    TransferSent,
)
from tests.processes import server
from tests.trainers.hub import Controller
from tests.trainers.plain import PlainTrainer, make_config, make_groups, make_model

PATIENCE_S = 120.0
M = TypeVar("M", bound=Message)


def role(*arguments: str) -> None:
    sys.argv = ["trainer", *arguments]
    run_role("trainer", main)


class Run:
    """A run directory, a hub, and the trainer processes that are started against them."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.dir = RunDir(path).create()
        self.attempt = self.dir.begin_attempt()
        keys.make_keys(self.dir.keys(self.attempt))
        self.config = make_config(**config)
        write_resolved(self.dir.config, self.config)
        make_model(self.dir.model)
        self.hub = Controller(keys.load_server(self.dir.keys(self.attempt)), self.attempt)
        self.processes: list[ForkServerProcess] = []

    def start(self, ranks: int = 1, checkpoint: Path | None = None) -> list[ForkServerProcess]:
        common = ["--run-dir", str(self.dir.path), "--address", self.hub.address, "--attempt", str(self.attempt)]
        common += ["--ranks", str(ranks), "--node", "here"]
        common += ["--checkpoint", str(checkpoint)] if checkpoint else []
        started = []
        for rank in range(ranks):
            arguments = [*common, "--rank", str(rank), "--name", f"trainer-{rank}"]
            process = server.Process(target=role, args=arguments, daemon=True)
            process.start()
            started.append(process)
        self.processes += started
        return started

    def joined(self, ranks: int = 1) -> Hello:
        """All ranks; returns rank 0's Hello."""
        hellos = {}
        while len(hellos) < ranks:
            hello = self.hub.hellos.get(timeout=PATIENCE_S)
            hellos[hello.name] = hello
        assert [hellos[f"trainer-{rank}"].capacity for rank in range(ranks)] == [1] + [0] * (ranks - 1)
        return hellos["trainer-0"]

    def expect(self, kind: type[M]) -> M:
        """The next message of rank 0."""
        name, message = self.hub.messages.get(timeout=PATIENCE_S)
        assert name == "trainer-0"
        assert isinstance(message, kind), message
        return message

    def send(self, message: Message, *frames: Frame) -> None:
        self.hub.send("trainer-0", message, *frames)

    def batch(self, step: int, *, at_once: bool = False) -> None:
        """A chunk for each group. `at_once`: a single chunk, so that the micro-batches don't depend on its timing."""
        groups = make_groups(step)
        items: list[ChunkItem] = []
        frames: list[bytes] = []
        for index, group in enumerate(groups):
            for name in dict.fromkeys(sample.trajectory for sample in group.samples):
                parts = [sample for sample in group.samples if sample.trajectory == name]
                lengths = [len(part.record) for part in parts]
                items.append(ChunkItem(name, group.group, group.task, parts[0].reward, lengths))
                records = [part.record for part in parts]
                frames.append(np.concatenate([record.ids for record in records]).tobytes())
                frames.append(np.concatenate([record.logprobs for record in records]).tobytes())
                frames.append(np.concatenate([record.versions for record in records]).tobytes())
            is_last = index == len(groups) - 1
            if is_last or not at_once:
                self.send(Chunk(step, 0 if at_once else index, items, is_last), *frames)
                items, frames = [], []

    def step(self, step: int, *, at_once: bool = False) -> Committed:
        """From the batch asked for to the weights published."""
        assert self.expect(BatchWanted).version == step
        self.batch(step, at_once=at_once)
        committed = self.expect(Committed)
        published = self.expect(Published)
        assert (published.attempt, published.version) == (self.attempt, step + 1)
        return committed

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.hub.close()
        self.dir.remove_store()


@contextmanager
def running(path: Path, **config: Any) -> Iterator[Run]:
    run = Run(path, **config)
    try:
        yield run
    finally:
        run.close()


def codes(processes: list[ForkServerProcess]) -> list[int | None]:
    for process in processes:
        process.join(PATIENCE_S)
    return [process.exitcode for process in processes]


def test_the_life_of_a_trainer(tmp_path: Path) -> None:
    with running(tmp_path / "run") as run:
        processes = run.start()
        hello = run.joined()
        first = run.expect(Published)
        assert (hello.version, first.version) == (0, 0)
        plain = PlainTrainer(run.config, run.dir.model)
        committed = run.step(0)
        assert committed.metrics["loss"] == pytest.approx(plain.step(make_groups(0)), abs=1e-5)
        assert committed.parent_digest != committed.digest
        store = NodeStore(run.dir.store_root, "here")
        assert store.open(WeightsId(1, 0)).manifest.digest == committed.parent_digest
        assert store.open(WeightsId(1, 1)).manifest.digest == committed.digest
        assert digest(store.open(WeightsId(1, 1))) == committed.digest
        run.step(1)
        run.expect(BatchWanted)
        run.batch(1)  # once more: nobody wants it
        directory = make_directory(tmp_path / "step_2.tmp")
        run.send(Save(2, str(directory)))
        assert run.expect(Saved) == Saved(2, "")
        run.batch(2, at_once=True)
        straight = run.expect(Committed)
        run.expect(Published)
        run.expect(BatchWanted)
        run.send(Stop("over"))
        assert codes(processes) == [0]
        names = {line.split('"name":"')[1].split('"')[0] for line in trace(run) if '"name":"' in line}
        assert names == {"wait", "train", "weights"}

        # the same run from its checkpoint
        processes = run.start(checkpoint=directory)
        hello = run.joined()
        assert hello.version == 2
        assert run.expect(Published).version == 2
        again = run.step(2, at_once=True)
        assert (again.parent_digest, again.digest) == (straight.parent_digest, straight.digest)
        run.send(Stop("over"))
        assert codes(processes) == [0]


def trace(run: Run) -> list[str]:
    return run.dir.trace_part(run.attempt, "trainer-0").read_text().splitlines()


def test_two_ranks_send_straight_to_engines(tmp_path: Path) -> None:
    with running(tmp_path / "run", weights__transport="direct") as run:
        processes = run.start(ranks=2)
        run.joined(ranks=2)
        run.expect(Published)
        run.expect(BatchWanted)
        run.send(TransferOffer(epoch=1, attempt=1, version=0, size=2))
        ready = run.expect(TransferReady)
        run.batch(0)  # trains while it sends
        join = TransferJoin(1, 1, 0, 1, 2, ready.host, ready.port, ready.secret)
        target = DirectTarget(join, deadline_s=PATIENCE_S)
        received = digest((name, tensor.clone()) for name, tensor in target)
        answers = [run.hub.messages.get(timeout=PATIENCE_S)[1] for _ in range(4)]
        assert {type(answer) for answer in answers} == {TransferSent, Committed, Published, BatchWanted}
        (committed,) = (answer for answer in answers if isinstance(answer, Committed))
        assert committed.parent_digest == received
        plain = PlainTrainer(run.config, run.dir.model)
        assert committed.metrics["loss"] == pytest.approx(plain.step(make_groups(0)), abs=1e-5)
        directory = make_directory(tmp_path / "step_1.tmp")
        run.send(Save(1, str(directory)))
        assert run.expect(Saved) == Saved(1, "")
        assert len(list((directory / "trainer").glob("*.distcp"))) == 2
        run.send(TransferOffer(epoch=2, attempt=1, version=1, size=2))
        run.expect(TransferReady)
        run.send(Stop("over"))  # nobody ever joins the transfer
        assert codes(processes) == [0, 0]


def test_rank_0_ends_when_another_rank_dies(tmp_path: Path) -> None:
    with running(tmp_path / "run") as run:
        leader, follower = run.start(ranks=2)
        run.joined(ranks=2)
        run.expect(Published)
        run.expect(BatchWanted)
        follower.kill()
        follower.join()
        run.batch(0)
        assert codes([leader]) == [ExitCode.ENVIRONMENT]


def test_a_damaged_checkpoint_ends_the_process_with_its_code(tmp_path: Path) -> None:
    with running(tmp_path / "run") as run:
        (tmp_path / "step_1" / "trainer").mkdir(parents=True)
        assert codes(run.start(checkpoint=tmp_path / "step_1")) == [ExitCode.ENVIRONMENT]
