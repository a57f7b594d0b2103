"""What a model directory says about its tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollart_hpc.errors import UserError
from rollart_hpc.model_files import end_ids
from tests.envs.models import END_ID, make_model_dir


def test_every_file_may_name_ids_that_end_a_turn(tmp_path: Path) -> None:
    model = make_model_dir(tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    (model / "config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert end_ids(model) == {7, 8, 9, END_ID}


def test_a_directory_without_a_tokenizer_has_the_ids_of_its_configs(tmp_path: Path) -> None:
    assert end_ids(tmp_path) == frozenset()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": None}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    assert end_ids(tmp_path) == {5}


def test_a_file_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json"):
        end_ids(tmp_path)
