"""A reward worker process against a scripted controller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from rollart_hpc.config.schema import RewardConfig, RunConfig, TaskConfig
from rollart_hpc.observe.plays import Play
from rollart_hpc.observe.transcripts import read
from rollart_hpc.rewards.service import Scorer
from rollart_hpc.wire.messages import Bye, Scored, ScoreFailed, ScoreWanted, Stop
from tests.roles.scripted import PATIENCE_S, Scripted

FUNCTION = str(Path(__file__).with_name("rewarding.py")) + ":length"


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Scripted]:
    tasks = {
        "good": TaskConfig(name="good", reward=FUNCTION, reward_params={"scale": 0.5}),
        "other": TaskConfig(name="other", reward=FUNCTION),
        "missing": TaskConfig(name="missing", reward="no_such_module_here:f"),
    }
    config = RunConfig(tasks=tasks, reward=RewardConfig(slots=7, timeout_s=2.0))
    scripted = Scripted(tmp_path / "run", config)
    scripted.start("reward")
    yield scripted
    scripted.close()


def ask(worker: Scripted, trajectory: str, task: str = "good", deed: str = "") -> None:
    transcript = {"task": task, "turns": [["look", "left"], ["wall", "up"]], "outcome": {"deed": deed}}
    worker.send(ScoreWanted(trajectory, 3, task), msgspec.msgpack.encode(transcript))


def until(found: Callable[[], list[Play]]) -> list[Play]:
    deadline_s = time.monotonic() + PATIENCE_S
    while not (plays := found()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return plays


def test_scores_failures_and_the_end(worker: Scripted) -> None:
    hello = worker.members.alive["worker-0"]
    assert (hello.role, hello.capacity) == ("reward", 7)
    ask(worker, "a")
    ask(worker, "b", "other")
    scored, _ = worker.expect(Scored, trajectory="a")
    assert (scored.issue, scored.reward, scored.success) == (3, 3.0, True) and scored.seconds >= 0
    scored, _ = worker.expect(Scored, trajectory="b")
    assert (scored.reward, scored.success) == (6.0, False)
    reasons = {
        "raise": "RuntimeError: told to", "sleep": "longer than 2 s", "spin": "longer than 2 s",
        "nan": "the reward is nan", "text": "the reward is '0.5'", "word": "success is 'no'", "none": "NoneType",
        "a turn too many": "expected 2 finite numbers",
    }  # fmt: skip
    for deed in reasons:
        ask(worker, deed, deed=deed)
    for deed, reason in reasons.items():
        failed, _ = worker.expect(ScoreFailed, trajectory=deed)
        assert failed.issue == 3 and reason in failed.reason
    ask(worker, "by turn", deed="turns")
    assert worker.expect(Scored, trajectory="by turn")[0].turn_rewards == [0.25, 0.75]
    ask(worker, "c", "missing")
    assert "no module" in worker.expect(ScoreFailed, trajectory="c")[0].reason
    ask(worker, "d", "unknown")
    assert "unknown" in worker.expect(ScoreFailed, trajectory="d")[0].reason
    worker.send(ScoreWanted("e", 1, "good"), b"\xc1 garbage")
    worker.send(ScoreWanted("f", 1, "good"))
    for trajectory in "ef":
        worker.expect(ScoreFailed, trajectory=trajectory)
    ask(worker, "g")
    assert worker.expect(Scored, trajectory="g")[0].reward == 3.0
    recorded = {play.trajectory for play in until(lambda: list(read(worker.run)))}
    assert recorded <= {"a", "b", "by turn", "g"}, "what was scored, and seconds later all of it"
    worker.send(Stop("done"))
    worker.expect(Bye)
    assert worker.processes[0].wait(PATIENCE_S) == 0
    plays = {play.trajectory: play for play in read(worker.run)}
    assert set(plays) == {"a", "b", "by turn", "g"} and plays["b"].reward == 6.0 and plays["b"].issue == 3
    assert plays["by turn"].turn_rewards == [0.25, 0.75] and plays["a"].turn_rewards == []
    assert plays["a"].messages[1] == {"role": "assistant", "content": "left"}
    assert '"reward"' in worker.run.trace_part(worker.attempt, "worker-0").read_text()


def test_the_traceback_of_a_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    scorer = Scorer({"good": TaskConfig(name="good", reward=FUNCTION)}, timeout_s=60.0)
    transcript = msgspec.msgpack.encode({"task": "good", "turns": [], "outcome": {"deed": "raise"}})
    for trajectory in "ab":
        assert isinstance(scorer.answer(ScoreWanted(trajectory, 1, "good"), [transcript]), ScoreFailed)
    assert caplog.text.count("RuntimeError: told to\nTraceback") == caplog.text.count("rewarding.py") == 1
    assert len(caplog.records) == 2


def test_function_that_can_not_be_interrupted_ends_the_process(worker: Scripted) -> None:
    ask(worker, "a", deed="stuck")
    assert worker.processes[0].wait(PATIENCE_S) == 1


def test_a_worker_without_work_leaves(worker: Scripted) -> None:
    worker.start("reward", "--idle-s=0.5", name="guest")
    ask(worker, "a")  # to the other one, which stays
    worker.expect(Bye)
    assert worker.processes[1].wait(PATIENCE_S) == 0 and worker.processes[0].poll() is None


def test_a_reward_imports_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text("BONUS = 0.25\n")
    (tmp_path / "judge.py").write_text(
        "from rollart_hpc.rewards.contract import Score\n"
        "def score(transcript):\n    import rules\n    return Score(rules.BONUS, True)\n"
    )
    scorer = Scorer({"own": TaskConfig(name="own", reward=f"{tmp_path / 'judge.py'}:score")}, PATIENCE_S)
    transcript = msgspec.msgpack.encode({"task": "own", "turns": [], "outcome": {}})
    answer = scorer.answer(ScoreWanted("t", 1, "own"), [transcript])
    assert isinstance(answer, Scored) and answer.reward == 0.25
