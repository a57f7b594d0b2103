"""The tokens of a model directory, read from its small files. Owns which ids end a turn; imports no torch.

An engine stops at these ids, and an env worker strips them from the answer. Both must use the same ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart_hpc.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def end_ids(model_dir: Path, tokenizer: Tokenizer | None = None) -> frozenset[int]:
    """Ids that end a turn: from the generation config, the model config and the tokenizer.

    `tokenizer`: the directory's tokenizer, if it is already loaded. Without a tokenizer, only the configs count.
    """
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        ids = read_settings(model_dir / name).get("eos_token_id")
        found.update([ids] if isinstance(ids, int) else ids or [])
    token = read_settings(model_dir / "tokenizer_config.json").get("eos_token")
    if token and (tokenizer is not None or (model_dir / "tokenizer.json").is_file()):
        own = (tokenizer or load_tokenizer(model_dir / "tokenizer.json")).token_to_id(token_text(token))
        found.update([] if own is None else [own])
    return frozenset(found)


def vocabulary_size(model_dir: Path) -> int:
    """Token ids of this model are below it; 0 = unknown."""
    settings = read_settings(model_dir / "config.json")
    size = settings.get("text_config", settings).get("vocab_size", 0)
    return size if isinstance(size, int) else 0


def load_tokenizer(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    if not path.is_file():
        raise UserError(f"{path} is missing", "env workers need a fast tokenizer; save it with transformers")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception
        raise UserError(f"{path}: {error}", "save the model's tokenizer again") from None


def token_text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def read_settings(path: Path) -> dict[str, Any]:
    """Returns {} if the file does not exist."""
    if not path.is_file():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path}: {error}", "the file must be valid JSON") from None
    return content
