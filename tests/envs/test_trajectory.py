from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rollart_hpc.envs.host import Happened
from rollart_hpc.envs.render import Renderer
from rollart_hpc.envs.trajectory import EnvTrajectory
from rollart_hpc.observe.plays import Facts, samples_of
from rollart_hpc.types import Frame, TokenRecord
from rollart_hpc.wire.messages import Ended, Play
from tests.envs.hosting import make_task
from tests.envs.models import make_model_dir

LIMIT = 4


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer(make_model_dir(tmp_path_factory.mktemp("model") / "m"))


def played(renderer: Renderer, observations: list[str], answers: list[str]) -> Ended:
    return ended(renderer, observations, answers)[0]


def ended(renderer: Renderer, observations: list[str], answers: list[str], **kept: bool) -> tuple[Ended, list[Frame]]:
    task = make_task(max_response_tokens=LIMIT, max_tokens=1000)
    trajectory = EnvTrajectory(Play("t", 1, "odd", 0, sample_seed=1), task, renderer)
    for i, (observation, answer) in enumerate(zip(observations, answers)):
        (trajectory.observe if i else trajectory.begin)(observation)
        trajectory.wanted()
        ids = renderer.encode(answer)[:LIMIT]
        trajectory.answer(TokenRecord(ids, np.zeros(len(ids), np.float32), np.full(len(ids), 7 + i, np.int32)))
    return trajectory.ended(Happened(trajectory, "turn", done=True, status="done"), **kept)


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


def test_a_transcript_that_is_kept_tells_more(renderer: Renderer) -> None:
    plays = {}
    for kept in ({}, {"is_kept": True}, {"is_kept": True, "keeps_tokens": True}):
        message, (transcript, *_) = ended(renderer, ["a", "b"], ["much too long", "x<|im_end|>"], **kept)
        plays[len(kept)] = msgspec.msgpack.decode(transcript)
    assert "facts" not in plays[0]
    facts, with_tokens = (msgspec.convert(plays[number]["facts"], Facts) for number in (1, 2))
    assert facts.lengths == [] and samples_of(facts) == []
    assert (facts.num_tokens, facts.first_version, facts.last_version) == (message.num_tokens, 7, 8)
    assert facts.policy_s >= 0 and not facts.is_cut
    tokens = samples_of(with_tokens)
    assert [len(one.ids) for one in tokens] == message.sample_lengths
    assert sum(version >= 0 for one in tokens for version in one.versions) == facts.num_sampled
