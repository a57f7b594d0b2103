"""What tasks name is imported and its signature compared, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.callables import find_code_problems

CODE = """
print("imported")

class Good:
    def __init__(self, size, colour="red"): ...
    def reset(self, seed): ...
    def step(self, response): ...
    def outcome(self): ...
    def close(self): ...

class Formed(Good):
    @staticmethod
    def legal_answer(rng): ...

class Bad:
    def reset(self, seed): ...

def make(**anything): ...
def score(transcript, weight=1.0): ...
def greedy(transcript, needed): ...
def nothing(): ...
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def found(file: Path, environment: str, reward: str = "score", kind: str = "directory", **more: Any) -> list[str]:
    task = {"environment": f"{file}:{environment}", "reward": f"{file}:{reward}", **more}
    return find_code_problems({"tasks": {"t": task}, "model": {"kind": kind}})


def test_good_code(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert found(file, "Good", params={"size": 3}) == []
    assert found(file, "Formed", kind="tiny", params={"size": 3}, reward_params={"weight": 2}) == []
    assert found(file, "make", kind="tiny", params={"whatever": 3}) == []
    assert capsys.readouterr().out == "", "it would stand in the output of --json"


def test_the_format_is_needed_by_the_tiny_model_only(file: Path) -> None:
    (problem,) = found(file, "Good", kind="tiny", params={"size": 1})
    assert (
        problem.startswith("tasks.t.environment: Good has no legal_answer(rng)") and "model.kind=directory" in problem
    )


def test_arguments_that_do_not_bind(file: Path) -> None:
    assert found(file, "Good", params={"size": 1, "color": "blue"}) == [
        "tasks.t.params.color: Good has no such argument; did you mean colour? legal: size, colour"
    ]
    assert found(file, "Good") == ["tasks.t.params: Good: missing a required argument: 'size'; legal: size, colour"]
    assert found(file, "make", "score", reward_params={"transcript": 1}) == [
        "tasks.t.reward_params.transcript: score has no such argument; legal: weight"
    ]
    assert "missing a required argument: 'needed'" in found(file, "make", "greedy")[0]
    assert "too many positional arguments" in found(file, "make", "nothing")[0]


def test_references_that_lead_nowhere(file: Path) -> None:
    problems = found(file, "Godo", "socre", params={"any": 1})
    assert "tasks.t.environment: " in problems[0] and "has no Godo; choose one of: Bad, Formed, Good" in problems[0]
    assert "tasks.t.reward: " in problems[1] and len(problems) == 2
    (problem,) = found(file, "Bad")
    assert "Bad is not an environment: it has no step, no outcome, no close" in problem


@pytest.mark.parametrize("text", ["raise RuntimeError('no')", "import sys; sys.exit(1)", "def"])
def test_a_module_that_can_not_be_imported(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    problems = found(tmp_path / "broken.py", "Env")
    assert len(problems) == 2 and all("can't be imported" in problem for problem in problems)


def test_what_is_no_section_is_left_to_the_schema() -> None:
    assert find_code_problems({}) == [] == find_code_problems({"tasks": {"t": 3}, "model": "tiny"})
    assert find_code_problems({"tasks": {"t": {"environment": 3, "reward": 4}}}) == []
