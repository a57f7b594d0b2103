from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

TASK = """
environment: envs/lake.py:Lake
reward: envs/lake.py:score
affinity: compute
max_turns: 5
params: {size: 4, slippery: false}
"""

ENVIRONMENT = """
class Lake:
    def __init__(self, size=1, slippery=False, note=""): ...
    def reset(self, seed): ...
    def step(self, response): ...
    def outcome(self): ...
    def close(self): ...
    def legal_answer(self, rng): ...

def score(transcript, bonus=0): ...
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file below tmp_path, which holds a task file and its environment."""

    def put(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    put("tasks/lake.yaml", TASK)
    put("tasks/envs/lake.py", ENVIRONMENT)
    return put
