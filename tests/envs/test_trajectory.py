from __future__ import annotations

import numpy as np
import pytest

from rollart_hpc.envs.host import Happened
from rollart_hpc.envs.render import Renderer
from rollart_hpc.envs.trajectory import EnvTrajectory
from rollart_hpc.types import TokenRecord
from rollart_hpc.wire.messages import Ended, Play
from tests.envs.hosting import make_task
from tests.envs.models import make_model_dir

LIMIT = 4


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer(make_model_dir(tmp_path_factory.mktemp("model") / "m"))


def played(renderer: Renderer, observations: list[str], answers: list[str]) -> Ended:
    task = make_task(max_response_tokens=LIMIT, max_tokens=1000)
    trajectory = EnvTrajectory(Play("t", 1, "odd", 0, sample_seed=1), task, renderer)
    for i, (observation, answer) in enumerate(zip(observations, answers)):
        (trajectory.observe if i else trajectory.begin)(observation)
        trajectory.wanted()
        ids = renderer.encode(answer)[:LIMIT]
        trajectory.answer(TokenRecord(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32)))
    ended, _ = trajectory.ended(Happened(trajectory, "turn", done=True, status="done"))
    return ended


def test_equal_observations_have_equal_states(renderer: Renderer) -> None:
    one, two = played(renderer, ["a", "b", "a"], ["x"] * 3), played(renderer, ["b"], ["y"])
    first, second, third = one.states
    assert first == third != second
    assert two.states == [second]
    assert all(0 <= state < 1 << 63 for state in one.states)


@pytest.mark.parametrize(
    ("answers", "is_cut"),
    [
        (["x<|im_end|>"], False),
        (["xyz<|im_end|>"], False),  # ended with its last token
        (["much too long"], True),
        (["much too long", "x<|im_end|>"], False),  # it could go on
    ],
)
def test_an_answer_that_ran_into_its_limit_cuts_the_play(renderer: Renderer, answers: list[str], is_cut: bool) -> None:
    assert played(renderer, ["a", "b"][: len(answers)], answers).is_cut is is_cut
