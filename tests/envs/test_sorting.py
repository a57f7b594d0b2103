from __future__ import annotations

import json
import random

import pytest

from rollart_hpc.envs.sorting import LEAD, Sorting


def test_shows_different_letters_of_the_alphabet_given() -> None:
    env = Sorting(length=4, letters=5)
    for seed in range(20):
        word, *letters = env.reset(seed).split()
        assert word == "sort"
        assert len(set(letters)) == 4
        assert set(letters) <= set("abcde")


def test_same_seed_same_question_and_seeds_differ() -> None:
    env = Sorting()
    assert env.reset(7) == Sorting().reset(7)
    assert len({env.reset(seed) for seed in range(1000)}) > 950


def test_one_answer_ends_the_play() -> None:
    env = Sorting()
    env.reset(0)
    assert env.step("whatever").done


def test_outcome_is_json_and_holds_what_was_shown() -> None:
    env = Sorting()
    question = env.reset(1)
    outcome = json.loads(json.dumps(env.outcome()))
    assert "sort " + " ".join(outcome["letters"]) == question
    env.close()


def test_legal_answers_have_the_form_and_a_random_order() -> None:
    env, rng = Sorting(length=6, letters=10), random.Random(0)
    env.reset(2)
    answers = [env.legal_answer(rng).split(" , ") for _ in range(50)]
    for clauses in answers:
        assert [clause.rsplit(" ", 1)[0] for clause in clauses] == [f"{LEAD} {place}" for place in range(1, 7)]
        assert sorted(clause[-1] for clause in clauses) == sorted(env.outcome()["letters"])
    assert len({" ".join(clauses) for clauses in answers}) > 40


def test_answers_are_long_and_questions_short() -> None:
    env = Sorting()
    assert len(env.reset(0).split()) < 10
    assert len(env.legal_answer(random.Random(0)).split()) > 32


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="length=6, letters=5"):
        Sorting(length=6, letters=5)
