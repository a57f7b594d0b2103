from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rollart_hpc.envs.contract import Turn
from rollart_hpc.envs.frozenlake import FrozenLake
from rollart_hpc.envs.render import Conversation, Renderer
from rollart_hpc.envs.sorting import Sorting
from rollart_hpc.trainers.base_model import make_tiny_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_tiny_model(path, 0, [FrozenLake(), Sorting()], steps=2, log=lambda line: None)
    return path


def test_it_is_a_hugging_face_directory(directory: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert model.config.tie_word_embeddings
    assert model.dtype == torch.float32
    assert json.loads((directory / "config.json").read_text())["eos_token_id"] == 2


def test_every_word_of_the_tasks_is_a_token(directory: Path) -> None:
    renderer = Renderer(directory)
    text = "next in line place 1 a , next in line place 6 j row 3 column 0 left trail down goal"
    ids = renderer.encode(text)
    assert len(ids) == len(text.split())
    assert renderer.decode(ids) == text


def test_a_later_turn_only_adds(directory: Path) -> None:
    renderer = Renderer(directory)
    talk = Conversation(renderer)
    prompt = talk.begin("row 0 column 0")
    answer = renderer.encode("down <|end|>")
    assert talk.answer(answer) == "down"
    delta = talk.observe("row 1 column 0")
    assert not delta.starts_over
    whole = "<|user|> row 0 column 0 <|end|> <|assistant|> down <|end|> <|user|> row 1 column 0 <|end|> <|assistant|>"
    assert [*prompt, *answer, *delta.ids] == list(renderer.encode(whole))


def test_the_same_seed_makes_the_same_model(directory: Path, tmp_path: Path) -> None:
    make_tiny_model(tmp_path, 0, [FrozenLake(), Sorting()], steps=2, log=lambda line: None)
    one, two = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (directory, tmp_path))
    assert all(torch.equal(one[name], two[name]) for name in one)


class Endless(Sorting):
    """Leaves its end to max_turns, and remembers what it was asked to play."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds: list[int] = []

    def reset(self, seed: int) -> str:
        self.seeds.append(seed)
        return super().reset(seed)

    def step(self, response: str) -> Turn:
        return Turn("go on", False)


def test_it_sees_training_seeds_only_and_ends_plays_that_do_not_end(tmp_path: Path) -> None:
    env = Endless()
    make_tiny_model(tmp_path, 0, [env], steps=1, log=lambda line: None)
    assert len(env.seeds) > 200 and all(seed % 2 == 0 for seed in env.seeds), "odd seeds are those of validation"
