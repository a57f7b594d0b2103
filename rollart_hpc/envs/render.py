"""Converts a conversation to token ids and back, with the model's chat template and tokenizer, without transformers.

Owns the rule that sampled ids are kept verbatim: a turn adds only what the template puts after the policy's answer.

    prompt    <user>observation 1<end><assistant>                        encoded once
    answer                                         sampled ids           never encoded again
    delta                                                     <end><user>observation 2<end><assistant>
                                                              (without <end> if the policy sampled it)

If the template rewrites earlier text (for example, drops earlier reasoning), there is no delta: the conversation
starts over with the whole text, and the tokens so far become a separate sample.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
import numpy as np
from numpy.typing import NDArray

from rollart_hpc.errors import UserError
from rollart_hpc.model_files import end_ids, load_tokenizer, read_settings, token_text

Chat = list[dict[str, str]]
MARK = "\u2063rollart\u2063"  # placeholder for an answer; invisible separators, so no template reacts to it
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class Renderer:
    """Template and tokenizer of one model directory. Stateless, so all trajectories share it."""

    def __init__(self, model_dir: Path) -> None:
        settings = read_settings(model_dir / "tokenizer_config.json")
        self._tokenizer = load_tokenizer(model_dir / "tokenizer.json")
        self._special = {name: token_text(settings[name]) for name in SPECIAL_TOKENS if settings.get(name)}
        self._template = _compile(_find_template(model_dir, settings))
        self.end_ids = end_ids(model_dir, self._tokenizer)

    def text(self, chat: Chat) -> str:
        """The whole conversation, up to the point where the policy answers."""
        return self._template.render(messages=chat, add_generation_prompt=True, **self._special)

    def encode(self, text: str) -> NDArray[np.int32]:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def decode(self, ids: NDArray[np.int32]) -> str:
        """The policy's text, without the end-of-turn token and other special tokens."""
        kept = ids[:-1] if self.is_ended(ids) else ids
        return str(self._tokenizer.decode(kept.tolist(), skip_special_tokens=True))

    def is_ended(self, ids: NDArray[np.int32]) -> bool:
        return len(ids) > 0 and int(ids[-1]) in self.end_ids

    def token_text(self, token: int) -> str:
        return self._tokenizer.id_to_token(token) or ""


@dataclass(frozen=True, slots=True)
class Delta:
    ids: NDArray[np.int32]
    starts_over: bool = False  # `ids` are the whole prompt of a new sample


class Conversation:
    """The text of one trajectory. Call `begin`, then `answer` and `observe` for every turn."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._chat: Chat = []
        self._text = ""
        self._answer = np.empty(0, np.int32)
        self._said = ""

    def begin(self, observation: str) -> NDArray[np.int32]:
        self._chat = [_user(observation)]
        self._text = self._renderer.text(self._chat)
        return self._renderer.encode(self._text)

    def answer(self, ids: NDArray[np.int32]) -> str:
        self._answer, self._said = ids, self._renderer.decode(ids)
        return self._said

    def observe(self, observation: str) -> Delta:
        text = self._renderer.text([*self._chat, _assistant(self._said), _user(observation)])
        marked = self._renderer.text([*self._chat, _assistant(MARK), _user(observation)])
        added = _added(self._text, self._said, text, marked)
        self._chat += [_assistant(self._said), _user(observation)]
        self._text = text
        if added is None:
            return Delta(self._renderer.encode(text), starts_over=True)
        if self._renderer.is_ended(self._answer):
            added = added.removeprefix(self._renderer.token_text(int(self._answer[-1])))
        return Delta(self._renderer.encode(added))


def _added(before: str, said: str, text: str, marked: str) -> str | None:
    """The text that the template puts after an answer; None if it changes the answer or anything before it.

    The template may trim white space around an answer: the sampled ids stay unchanged.
    """
    if not marked.startswith(before + MARK):
        return None
    added = marked[len(before) + len(MARK) :]
    shapes = (said, said.strip(), said.lstrip(), said.rstrip())
    return added if any(text == before + shape + added for shape in shapes) else None


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


# --- files of a model directory --------------------------------------------------------------------


def _find_template(model_dir: Path, settings: dict[str, Any]) -> str:
    file = model_dir / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    template = settings.get("chat_template")
    if isinstance(template, list):  # named templates
        template = next((each["template"] for each in template if each["name"] == "default"), None)
    if not isinstance(template, str):
        raise UserError(f"{model_dir} has no chat template", "add chat_template.jinja to the model directory")
    return template


def _compile(template: str) -> jinja2.Template:
    """Same settings as transformers. Sandboxed, because a template is code that comes with the model."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"the chat template does not parse: {error}", "correct it in the model directory") from None


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for transformers; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own interface

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
