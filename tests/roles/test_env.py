"""An env worker process against a scripted controller: every message of its protocol, every way to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rollart_hpc.config.schema import EnvConfig, RunConfig, TaskConfig
from rollart_hpc.envs.render import Renderer
from rollart_hpc.types import OBSERVED, Frame, TokenRecord
from rollart_hpc.wire.messages import Bye, Cancel, Ended, Generated, Play, Resend, Stop, TurnWanted
from rollart_hpc.wire.prefix import prefix_hash
from tests.envs.hosting import alive, make_task, wait_until_dead
from tests.envs.models import FORGETTING, make_model_dir
from tests.roles.scripted import PATIENCE_S, Scripted, sampled


def tasks() -> dict[str, TaskConfig]:
    return {
        "odd": make_task(max_turns=3, max_response_tokens=20, max_tokens=4000, params={"turns": 3}),
        "long": make_task(max_turns=2, params={"turns": 100}),
        "narrow": make_task(max_tokens=130, max_response_tokens=40, params={"turns": 100}),
        "tiny": make_task(max_tokens=10),
        "hasty": make_task(turn_timeout_s=4.0, reset_timeout_s=8.0),
        "shared": make_task(isolation="shared", params={"turns": 1}),
    }


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    """One worker for the whole module: that it serves all tests in turn is a test itself."""
    path = tmp_path_factory.mktemp("env") / "run"
    scripted = Scripted(path, RunConfig(tasks=tasks(), env=EnvConfig(slots=8)))
    make_model_dir(scripted.run.model)
    scripted.start("env")
    yield scripted
    scripted.close()


@pytest.fixture(scope="module")
def renderer(worker: Scripted) -> Renderer:
    return Renderer(worker.run.model)


def play(trajectory: str, task: str = "odd", seed: int = 5, issue: int = 1) -> Play:
    return Play(trajectory, issue, task, seed, sample_seed=1)


def generated(trajectory: str) -> Generated:
    return Generated(1, trajectory, 0, 0)


def ints(frame: Frame) -> np.ndarray:
    return np.frombuffer(frame, np.int32)


def say(worker: Scripted, renderer: Renderer, trajectory: str, text: str) -> np.ndarray:
    ids = renderer.encode(text)
    worker.send(generated(trajectory), *sampled(ids))
    return ids


def test_hello_tells_the_slots(worker: Scripted) -> None:
    hello = worker.members.alive["worker-0"]
    assert (hello.role, hello.capacity, hello.node) == ("env", 8, "here")


def test_whole_trajectory(worker: Scripted, renderer: Renderer) -> None:
    worker.send(play("t1", seed=17))
    wanted, frames = worker.expect(TurnWanted, trajectory="t1")
    context = ints(frames[0])
    assert wanted.full and (wanted.turn, wanted.prefix_tokens) == (0, 0)
    assert wanted.prefix_hash == prefix_hash(context[:0]) and wanted.max_new_tokens == 20
    assert "user\nseed 17 " in renderer.decode(context)
    answers = []
    for turn in (1, 2):
        answers.append(say(worker, renderer, "t1", f"answer {turn}<|im_end|>"))
        context = np.concatenate([context, answers[-1]])
        wanted, frames = worker.expect(TurnWanted, trajectory="t1")
        assert not wanted.full and (wanted.turn, wanted.prefix_tokens) == (turn, len(context))
        assert wanted.prefix_hash == prefix_hash(context)
        context = np.concatenate([context, ints(frames[0])])
    answers.append(say(worker, renderer, "t1", "last"))
    context = np.concatenate([context, answers[-1]])
    ended, frames = worker.expect(Ended, trajectory="t1")
    assert (ended.status, ended.num_turns, ended.sample_lengths) == ("done", 3, [len(context)])
    record = TokenRecord.from_frames(frames[1:])
    assert record.ids.tolist() == context.tolist() and ended.num_tokens == len(context)
    assert record.ids[record.sampled].tolist() == np.concatenate(answers).tolist()
    assert set(record.versions[record.sampled]) == {4} and set(record.versions[~record.sampled]) == {OBSERVED}
    expected = np.concatenate([-np.arange(1, len(answer) + 1) for answer in answers])
    assert record.logprobs[record.sampled].tolist() == expected.tolist() and not record.logprobs[~record.sampled].any()
    transcript = msgspec.msgpack.decode(frames[0])
    assert transcript["task"] == "odd" and transcript["outcome"] == {"turns": 3, "seed": 17, "path": [0, 1]}
    assert [answer for _, answer in transcript["turns"]] == ["answer 1", "answer 2", "last"]
    assert transcript["turns"][1][0].startswith("turn 1 ")


def test_resend_brings_all_tokens(worker: Scripted, renderer: Renderer) -> None:
    worker.send(play("t2"))
    _, frames = worker.expect(TurnWanted, trajectory="t2")
    first = ints(frames[0])
    worker.send(Resend("t2", 1, 0))
    wanted, frames = worker.expect(TurnWanted, trajectory="t2")
    assert wanted.full and ints(frames[0]).tolist() == first.tolist()
    answer = say(worker, renderer, "t2", "x")
    delta = ints(worker.expect(TurnWanted, trajectory="t2")[1][0])
    worker.send(Resend("t2", 1, 0))  # of a turn that is over
    worker.send(Resend("t2", 9, 1))  # of another issue
    worker.send(Resend("t2", 1, 1))
    wanted, frames = worker.expect(TurnWanted, trajectory="t2")
    assert wanted.full and (wanted.turn, wanted.prefix_tokens, wanted.max_new_tokens) == (1, 0, 20)
    assert ints(frames[0]).tolist() == np.concatenate([first, answer, delta]).tolist()
    say(worker, renderer, "t2", "y")
    assert worker.expect(TurnWanted, trajectory="t2")[0].prefix_tokens == len(first) + len(answer) + len(delta) + 1
    worker.send(Cancel("t2", 1, "test"))


def test_ends_by_turns_and_by_tokens(worker: Scripted, renderer: Renderer) -> None:
    worker.send(play("t3", "long"))
    for _ in range(2):
        worker.expect(TurnWanted, trajectory="t3")
        say(worker, renderer, "t3", "x")
    ended, frames = worker.expect(Ended, trajectory="t3")
    assert (ended.status, ended.num_turns) == ("done", 2)
    assert msgspec.msgpack.decode(frames[0])["outcome"]["turns"] == 2  # the environment saw the last answer
    worker.send(play("t4", "narrow"))
    wanted, frames = worker.expect(TurnWanted, trajectory="t4")
    room = 130 - len(ints(frames[0]))
    assert 1 <= wanted.max_new_tokens == min(40, room)
    answer = say(worker, renderer, "t4", "y" * wanted.max_new_tokens)
    ended, frames = worker.expect(Ended, trajectory="t4")
    record = TokenRecord.from_frames(frames[1:])
    assert (ended.status, ended.num_turns) == ("done", 1)
    assert record.ids[-len(answer) :].tolist() == answer.tolist()  # no trailing observation nobody answered
    assert msgspec.msgpack.decode(frames[0])["outcome"]["turns"] == 1


def test_failures_are_data(worker: Scripted, renderer: Renderer) -> None:
    """All at once, in one worker, beside a trajectory that goes well."""
    worker.send(play("good", "hasty"))
    worker.expect(TurnWanted, trajectory="good")
    deeds = {"raise": "env_error", "exit": "env_crashed", "spin": "env_timeout", "garbage": "env_crashed"}
    for deed in deeds:
        worker.send(play(deed, "hasty"))
    for deed in deeds:
        worker.expect(TurnWanted, trajectory=deed)
        say(worker, renderer, deed, deed)
    worker.send(play("bad reset", "hasty", seed=-1))
    worker.send(play("slow reset", "hasty", seed=1_000_000))
    worker.send(play("no task", "missing"))
    worker.send(play("no room", "tiny"))
    expected = {**deeds, "bad reset": "reset_failed", "slow reset": "reset_timeout", "no task": "reset_failed"}
    expected["no room"] = "env_error"
    for trajectory, status in expected.items():
        ended, frames = worker.expect(Ended, trajectory=trajectory)
        assert (trajectory, ended.status) == (trajectory, status) and ended.detail and len(frames) == 4
    say(worker, renderer, "good", "on")
    assert worker.expect(TurnWanted, trajectory="good")[0].turn == 1
    worker.send(Cancel("good", 1, "test"))


def test_cancel_is_final_and_silent(worker: Scripted, renderer: Renderer) -> None:
    worker.send(play("c1"))
    worker.send(play("c2"))
    observed = renderer.decode(ints(worker.expect(TurnWanted, trajectory="c1")[1][0]))
    worker.expect(TurnWanted, trajectory="c2")
    say(worker, renderer, "c2", "sleep 3600")
    worker.send(Cancel("c1", 7, "another issue: ignored"))
    for trajectory in ("c1", "c2", "unknown"):
        worker.send(Cancel(trajectory, 1, "surplus"))
    say(worker, renderer, "c1", "too late")
    worker.idle(0.5)
    assert not worker.waiting
    worker.send(play("c1", issue=2))
    wanted, frames = worker.expect(TurnWanted, trajectory="c1")
    assert wanted.issue == 2
    again = renderer.decode(ints(frames[0]))
    assert again.split("pid ")[1].split()[0] == observed.split("pid ")[1].split()[0]  # the idle process was kept
    worker.send(Cancel("c1", 2, "test"))


def test_newer_issue_replaces_the_older(worker: Scripted) -> None:
    worker.send(play("i1", issue=1))
    worker.expect(TurnWanted, trajectory="i1")
    worker.send(play("i1", issue=2))
    assert worker.expect(TurnWanted, trajectory="i1")[0].issue == 2
    worker.send(Cancel("i1", 2, "test"))


def test_shared_isolation(worker: Scripted, renderer: Renderer) -> None:
    worker.send(play("s1", "shared"))
    worker.expect(TurnWanted, trajectory="s1")
    say(worker, renderer, "s1", "x")
    assert worker.expect(Ended, trajectory="s1")[0].status == "done"


def test_unreadable_answer_fails_one_trajectory(worker: Scripted) -> None:
    worker.send(play("u1"))
    worker.expect(TurnWanted, trajectory="u1")
    worker.send(generated("u1"), b"1234", b"1234", b"12345678")
    ended, _ = worker.expect(Ended, trajectory="u1")
    assert ended.status == "env_error" and "unreadable" in ended.detail


def test_lost_worker_drops_everything_and_joins_again(worker: Scripted) -> None:
    worker.send(play("l1"))
    worker.expect(TurnWanted, trajectory="l1")
    worker.changes.clear()
    worker.members.lose("worker-0", "test")
    while not worker.changes:
        worker.idle(0.1)
    worker.send(Resend("l1", 1, 0))  # it knows nothing of it any more
    worker.send(play("l2"))
    worker.expect(TurnWanted, trajectory="l2")
    assert not worker.waiting
    worker.send(Cancel("l2", 1, "test"))


def test_stop_ends_it_cleanly(worker: Scripted) -> None:
    """Last of the module: the worker is gone afterwards."""
    worker.send(play("z1"))
    pid = int(Renderer(worker.run.model).decode(ints(worker.expect(TurnWanted)[1][0])).split("pid ")[1].split()[0])
    assert alive(pid)
    worker.send(Stop("all steps done"))
    worker.expect(Bye)
    assert worker.processes[0].wait(PATIENCE_S) == 0
    wait_until_dead([pid])
    spans = worker.run.trace_part(worker.attempt, "worker-0").read_text()
    assert '"environment.reset"' in spans and '"environment.turn"' in spans


def test_killed_worker_leaves_nothing_running(tmp_path: Path) -> None:
    scripted = Scripted(tmp_path / "run", RunConfig(tasks=tasks()))
    try:
        make_model_dir(scripted.run.model)
        process = scripted.start("env")
        renderer = Renderer(scripted.run.model)
        pids = []
        for name in ("a", "b", "c"):
            scripted.send(play(name))
            text = renderer.decode(ints(scripted.expect(TurnWanted, trajectory=name)[1][0]))
            pids.append(int(text.split("pid ")[1].split()[0]))
        pids.append(int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1]))  # the fork server
        say(scripted, renderer, "b", "spin")
        say(scripted, renderer, "c", "sleep 3600")
        assert all(alive(pid) for pid in pids)
        process.kill()
        wait_until_dead(pids)
    finally:
        scripted.close()


def test_replaced_worker_ends_itself_and_its_environments(tmp_path: Path) -> None:
    scripted = Scripted(tmp_path / "run", RunConfig(tasks=tasks()))
    try:
        make_model_dir(scripted.run.model)
        old = scripted.start("env")
        scripted.send(play("a"))
        text = Renderer(scripted.run.model).decode(ints(scripted.expect(TurnWanted)[1][0]))
        incarnation = scripted.members.alive["worker-0"].incarnation
        scripted.start("env")  # the same name
        while scripted.members.alive["worker-0"].incarnation == incarnation:
            scripted.idle(0.1)
        assert old.wait(PATIENCE_S) == 4
        wait_until_dead([int(text.split("pid ")[1].split()[0])])
        scripted.send(play("a", issue=2))
        assert scripted.expect(TurnWanted)[0].issue == 2
    finally:
        scripted.close()


def test_template_that_rewrites_history_gives_several_samples(tmp_path: Path) -> None:
    scripted = Scripted(tmp_path / "run", RunConfig(tasks=tasks()))
    try:
        make_model_dir(scripted.run.model, FORGETTING)
        scripted.start("env")
        renderer = Renderer(scripted.run.model)
        scripted.send(play("t"))
        first = ints(scripted.expect(TurnWanted)[1][0])
        thought = say(scripted, renderer, "t", "hm</think>a<|im_end|>")
        wanted, frames = scripted.expect(TurnWanted)
        second = ints(frames[0])
        assert wanted.full and wanted.prefix_tokens == 0 and "hm" not in renderer.decode(second)
        plain = say(scripted, renderer, "t", "b<|im_end|>")
        wanted, frames = scripted.expect(TurnWanted)
        assert not wanted.full and wanted.prefix_tokens == len(second) + len(plain)
        third = ints(frames[0])
        last = say(scripted, renderer, "t", "c")
        ended, frames = scripted.expect(Ended)
        parts = [first, thought, second, plain, third, last]
        assert ended.sample_lengths == [len(first) + len(thought), sum(map(len, parts[2:]))]
        assert TokenRecord.from_frames(frames[1:]).ids.tolist() == np.concatenate(parts).tolist()
    finally:
        scripted.close()
