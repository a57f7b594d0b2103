from __future__ import annotations

import json
import random

import pytest

from rollart_hpc.envs.frozenlake import MOVES, RULES, FrozenLake

DIRECTIONS = ("left", "down", "right", "up")


def around(observation: str) -> dict[str, str]:
    words = observation.split()[4:]
    return dict(zip(words[::2], words[1::2], strict=True))


def walk(env: FrozenLake, seed: int) -> bool:
    """Towards the goal where it is safe, back where it is not; reads nothing but the observation."""
    observation, done = env.reset(seed), False
    while not done:
        cells = around(observation)
        wanted = [(kind, move) for kind in ("goal", "ice", "trail") for move in ("right", "down", "left", "up")]
        turn = env.step(next(move for kind, move in wanted if cells[move] == kind))
        observation, done = turn.observation, turn.done
    return bool(env.outcome()["reached"])


def test_first_observation_tells_the_place_and_the_four_neighbours() -> None:
    words = FrozenLake().reset(3).split()
    assert words[:4] == ["row", "0", "column", "0"]
    assert tuple(words[4::2]) == DIRECTIONS
    assert words[5] == words[11] == "wall"


def test_same_seed_same_play_also_after_another() -> None:
    env, other = FrozenLake(), FrozenLake()
    first = env.reset(5)
    env.step("down")
    env.reset(6)
    assert env.reset(5) == first == other.reset(5)
    assert env.step("right") == other.step("right")


def test_maps_vary_by_seed() -> None:
    env = FrozenLake()
    maps = {tuple(env.map) for seed in range(50) if env.reset(seed)}
    assert len(maps) > 40


def test_where_it_has_been_is_trail() -> None:
    env = FrozenLake(frozen=1.0)
    env.reset(0)
    assert around(env.step("down").observation)["up"] == "trail"


def test_a_wall_or_an_unknown_word_costs_a_turn() -> None:
    env = FrozenLake(max_turns=3)
    first = env.reset(0)
    assert env.step("left").observation == first
    assert env.step("left down").observation == first
    assert env.step("").done
    assert env.outcome() == {"reached": False, "fell": False, "invalid": 2, "progress": 0.0}


def test_a_hole_ends_the_play() -> None:
    env = FrozenLake()
    for seed in range(100):
        cells = around(env.reset(seed))
        if "hole" in cells.values():
            break
    turn = env.step(next(move for move, cell in cells.items() if cell == "hole"))
    assert turn.done
    assert env.outcome()["fell"]


def test_the_goal_can_be_reached_by_reading_the_observations() -> None:
    env = FrozenLake()
    reached = sum(walk(env, seed) for seed in range(100))
    assert reached > 85


@pytest.mark.parametrize("seed", range(5))
def test_legal_answers_are_moves_and_outcomes_are_json(seed: int) -> None:
    env, rng, done = FrozenLake(), random.Random(seed), False
    env.reset(seed)
    while not done:
        answer = env.legal_answer(rng)
        assert answer in MOVES
        done = env.step(answer).done
    outcome = env.outcome()
    assert json.loads(json.dumps(outcome)) == outcome
    assert 0.0 <= outcome["progress"] <= 1.0
    env.close()


def test_for_readers_the_rules_come_first_and_the_last_word_counts() -> None:
    plain, told = FrozenLake(), FrozenLake(explained=True)
    assert told.reset(3) == RULES + plain.reset(3)
    for answer, move in (("<think>up?</think>\n\n**Down.**", "down"), ("Let me go right", "right"), ("", "")):
        assert told.step(answer).observation == plain.step(move).observation
    assert told.outcome()["invalid"] == plain.outcome()["invalid"] == 1
