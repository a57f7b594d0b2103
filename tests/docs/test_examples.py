"""The example of docs/tasks.md is a task: it passes `check`, plays, and is scored."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rollart_hpc.config.load import load
from rollart_hpc.config.objects import resolve
from rollart_hpc.rewards.contract import Transcript

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tasks.md"
BLOCK = re.compile(r"^```(?:python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[str]:
    return BLOCK.findall(PAGE.read_text())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the page's files, and a run file for each way it shows to use them."""
    for text in blocks():
        named = re.match(r"# (guess\.\w+)\n", text)
        if named:
            (tmp_path / named[1]).write_text(text)
    uses = [text for text in blocks() if text.startswith("tasks:")]
    assert len(uses) == 2
    for number, text in enumerate(uses):
        (tmp_path / f"run{number}.yaml").write_text(text)
    return tmp_path


@pytest.mark.parametrize(("run", "tasks"), [("run0", ["frozenlake", "guess"]), ("run1", ["easy", "hard"])])
def test_the_example_passes_check(place: Path, run: str, tasks: list[str]) -> None:
    command = [sys.executable, "-m", "rollart_hpc.cli", "check", str(place / f"{run}.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(load(place / f"{run}.yaml").tasks) == tasks


def test_the_example_plays_and_is_scored(place: Path) -> None:
    task = load(place / "run0.yaml").tasks["guess"]
    assert task.turn_timeout_s == 5
    env, reward = resolve(task.environment)(**task.params), resolve(task.reward)
    observation, low, high, turns = env.reset(2), 1, task.params["highest"], []
    for _ in range(task.max_turns):
        guess = (low + high) // 2
        turns.append((observation, str(guess)))
        observation, done = (turn := env.step(str(guess))).observation, turn.done
        if done:
            break
        low, high = (guess + 1, high) if observation == "higher" else (low, guess - 1)
    score = reward(Transcript("guess", turns, env.outcome()), **task.reward_params)
    assert score.success and score.reward == pytest.approx(1 - 0.02 * len(turns))
    env.close()


def test_the_examples_legal_answers_are_legal_and_the_same_seed_is_the_same_play(place: Path) -> None:
    env = resolve(f"{place / 'guess.py'}:Guess")(highest=50)
    first = env.reset(4)
    replies = {env.step(env.legal_answer(random.Random(seed))).observation for seed in range(20)}
    assert replies <= {"higher", "lower"}
    assert env.step("a number").observation == "Say a number." and not env.outcome()["found"]
    secret = env.secret
    assert (env.reset(4), env.secret) == (first, secret)


def test_the_example_of_trouble_is_legal(place: Path) -> None:
    (trouble,) = (text for text in blocks() if text.startswith("trouble:"))
    (place / "guess.yaml").write_text((place / "guess.yaml").read_text() + trouble)
    assert load(place / "run0.yaml").tasks["guess"].trouble.crash_rate == 0.01
