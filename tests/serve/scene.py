"""Runs to look at: made-up ones with recorded trajectories, and a server on them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from rollart_hpc.config.schema import ObserveConfig
from rollart_hpc.observe import ledger
from rollart_hpc.observe.plays import Facts
from rollart_hpc.rewards.recording import Recorder
from rollart_hpc.rundir import RunDir
from rollart_hpc.serve.library import Library
from rollart_hpc.serve.server import Server
from rollart_hpc.trainers import recording as of_the_trainer
from rollart_hpc.types import Sample, TokenRecord, TrainGroup
from rollart_hpc.wire.messages import Scored, ScoreWanted
from tests.observe.fake_run import write_fake_run

ALL = ObserveConfig(transcripts=1.0, transcript_tokens=1.0)
MEMBERS = 4
ANSWERS = ("left", "down", "right", "up")


def make_run(path: Path, steps: int = 8, created_s: float = 1.8e9) -> RunDir:
    """Of each step a group of four, of which one succeeds; a tokenizer that knows the answers."""
    run = RunDir(path).create()
    run.identity.write_text(json.dumps({"run_id": path.name, "created_s": created_s}))
    write_fake_run(path, steps)
    write_tokenizer(run.model)
    plays, trainer = recorder(run), of_the_trainer.Recorder(run, ALL, "trainer-0-t", 1)
    for step in range(steps):
        names = [f"a1.g{step}.m{member}" for member in range(MEMBERS)]
        for member, name in enumerate(names):
            write_play(plays, name, 1.0 if member == step % MEMBERS else 0.25 * member, step)
        line = ledger.Line(1, step, step + 1, f"w{step}", f"w{step + 1}", [step], names, [step] * MEMBERS)
        with run.ledger.open("ab") as file:
            file.write(ledger.encode(line) + b"\n")
        group = TrainGroup(step, "frozenlake", [Sample(name, step, "frozenlake", record(step), 0.0) for name in names])
        for member, sample in enumerate(group.samples):
            sample.advantages = np.full(4, 0.5 - member, np.float32)
        trainer.take([group], starts=True)
        trainer.trained(step)
    write_play(plays, f"a1.v{steps}.countdown.0", 0.5, steps, "countdown")
    plays.close()
    trainer.close()
    owner = {"pid": 0, "start_ticks": 0, "host": "h", "state": "finished", "procs": {}, "attempt": 1}
    run.supervisor.write_text(json.dumps(owner))
    (run.logs(1)).mkdir(parents=True)
    run.log(1, "controller").write_text("the first line\n<script>alert(1)</script>\n")
    return run


def recorder(run: RunDir, name: str = "reward-0-r") -> Recorder:
    return Recorder(run, ALL, name, 1)


def record(version: int) -> TokenRecord:
    ids = np.array([0, 1, 2, 3, 4, 5], np.int32)
    logprobs = np.array([0, 0, -0.1, -3.0, -0.5, -6.0], np.float32)
    return TokenRecord(ids, logprobs, np.array([-1, -1, version, version, version, version + 1], np.int32))


def write_play(to: Recorder, name: str, reward: float, version: int, task: str = "frozenlake", text: str = "") -> None:
    tokens = dict(zip(("ids", "logprobs", "versions"), map(bytes, record(version).to_frames()), strict=True))
    facts = Facts(7, 6, 4, version, version + 1, reward == 0.0, 0.1, 0.2, 0.3, lengths=[6], **tokens)
    turns = [(text or f"row 0 column {at}", answer) for at, answer in enumerate(ANSWERS)]
    transcript = msgspec.msgpack.encode(
        {"task": task, "turns": turns, "outcome": {"reached": reward == 1.0}, "facts": facts}
    )
    to.scored(ScoreWanted(name, 0, task), transcript, Scored(name, 0, reward, reward == 1.0, 0.01))


def write_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    directory.mkdir(exist_ok=True)
    words = ["<user>", "look", *ANSWERS]
    vocabulary = {word: number for number, word in enumerate(words)}
    Tokenizer(WordLevel(vocabulary, unk_token="look")).save(str(directory / "tokenizer.json"))


@contextmanager
def serving(*places: Path) -> Iterator[Server]:
    server = Server(Library(places))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
