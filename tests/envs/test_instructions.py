from __future__ import annotations

import json
import random

import pytest

from rollart_hpc.envs.instructions import KINDS, Instructions
from rollart_hpc.rewards.contract import Transcript
from rollart_hpc.rewards.instructions import followed


def answer_to(kind: str, text: str) -> list[str]:
    """Worked out from the text alone."""
    words, named = text.split(), text.rsplit(": ", maxsplit=1)[-1].split(", ")
    match kind:
        case "copy":
            return named
        case "repeat":
            return [words[3]] * int(words[4])
        case "reverse":
            return named[::-1]
        case "capitals":
            return [word.upper() for word in named]
    return [str(number) for number in range(int(words[3]), int(words[5].strip(",")) - 1, -1)]


def test_every_kind_comes_and_its_answer_follows_from_the_text() -> None:
    env, seen = Instructions(), set()
    for seed in range(200):
        text = env.reset(seed)
        outcome = json.loads(json.dumps(env.outcome()))
        seen.add(outcome["kind"])
        assert outcome["items"] == answer_to(outcome["kind"], text), text
        assert 2 <= len(outcome["items"]) <= 5
    assert seen == set(KINDS)


def test_same_seed_same_instruction_and_one_answer_ends_the_play() -> None:
    env = Instructions()
    assert env.reset(7) == Instructions().reset(7)
    assert len({env.reset(seed) for seed in range(300)}) > 250
    assert env.step("whatever").done
    env.close()


def test_kinds_and_length_can_be_chosen() -> None:
    env = Instructions(kinds=["count"], longest=3)
    assert {env.reset(seed).split()[0] for seed in range(20)} == {"Count"}
    assert max(len(env.outcome()["items"]) for seed in range(50) if env.reset(seed)) == 3
    with pytest.raises(ValueError, match="must be some of copy"):
        Instructions(kinds=["juggle"])
    with pytest.raises(ValueError, match="longest=1"):
        Instructions(longest=1)


def test_legal_answers_have_the_form_but_hardly_ever_succeed() -> None:
    env, rng = Instructions(), random.Random(0)
    scores = []
    for seed in range(100):
        text = env.reset(seed)
        answer = env.legal_answer(rng)
        scores.append(followed(Transcript("instructions", [(text, answer)], env.outcome())))
    assert not any(score.success for score in scores)
