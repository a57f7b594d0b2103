from __future__ import annotations

import json
from pathlib import Path

import jinja2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollart_hpc.envs.render import Conversation, Renderer
from rollart_hpc.errors import UserError
from tests.envs.models import BARE, CHATML, END_ID, FORGETTING, SMOLLM2, TRIMMING, VOCABULARY, make_model_dir

TEMPLATES = {"chatml": CHATML, "trimming": TRIMMING, "bare": BARE, "forgetting": FORGETTING, "smollm2": SMOLLM2}
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


@pytest.fixture(scope="module")
def renderers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Renderer]:
    root = tmp_path_factory.mktemp("models")
    return {name: Renderer(make_model_dir(root / name, template)) for name, template in TEMPLATES.items()}


def ids_of(renderer: Renderer, text: str) -> np.ndarray:
    return renderer.encode(text)


def test_prompt_and_delta_of_chatml(renderers: dict[str, Renderer]) -> None:
    renderer = renderers["chatml"]
    talk = Conversation(renderer)
    prompt = talk.begin("look")
    assert prompt.tolist() == ids_of(renderer, "<|im_start|>user\nlook<|im_end|>\n<|im_start|>assistant\n").tolist()
    assert talk.answer(ids_of(renderer, "left<|im_end|>")) == "left"
    rest = "\n<|im_start|>user\nwall<|im_end|>\n<|im_start|>assistant\n"
    assert talk.observe("wall").ids.tolist() == ids_of(renderer, rest).tolist()  # the end was sampled
    assert talk.answer(ids_of(renderer, "right")) == "right"
    assert talk.observe("hole").ids.tolist() == ids_of(renderer, "<|im_end|>" + rest.replace("wall", "hole")).tolist()


def test_the_default_system_message_comes_once(renderers: dict[str, Renderer]) -> None:
    renderer = renderers["smollm2"]
    talk = Conversation(renderer)
    prompt = talk.begin("look")
    text = SYSTEM + "<|im_start|>user\nlook<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.tolist() == ids_of(renderer, text).tolist()
    talk.answer(ids_of(renderer, "left<|im_end|>"))
    rest = "\n<|im_start|>user\nwall<|im_end|>\n<|im_start|>assistant\n"
    assert talk.observe("wall").ids.tolist() == ids_of(renderer, rest).tolist()


def test_end_token_that_the_template_does_not_write_stays(renderers: dict[str, Renderer]) -> None:
    renderer = renderers["bare"]
    talk = Conversation(renderer)
    assert talk.begin("look").tolist() == ids_of(renderer, "<s>Q: look\nA:").tolist()
    assert talk.answer(ids_of(renderer, " left<|im_end|>")) == " left"
    assert talk.observe("wall").starts_over  # the template writes two spaces where the policy wrote one
    assert talk.answer(np.array([END_ID], np.int32)) == ""


def test_decoding_drops_special_tokens_and_survives_broken_bytes(renderers: dict[str, Renderer]) -> None:
    renderer = renderers["chatml"]
    assert renderer.decode(ids_of(renderer, "a<|im_start|>b<|im_end|>")) == "ab"
    assert renderer.decode(np.empty(0, np.int32)) == ""
    half_a_character = ids_of(renderer, "é")[:1]
    assert renderer.decode(half_a_character) == "\ufffd"
    assert renderer.end_ids == {END_ID}


def test_rewriting_template_starts_over_with_the_whole_text(renderers: dict[str, Renderer]) -> None:
    renderer = renderers["forgetting"]
    talk = Conversation(renderer)
    talk.begin("look")
    talk.answer(ids_of(renderer, "left<|im_end|>"))
    assert not talk.observe("wall").starts_over
    talk.answer(ids_of(renderer, "hmm</think>right<|im_end|>"))
    delta = talk.observe("hole")
    assert delta.starts_over
    said = [("user", "look"), ("assistant", "left"), ("user", "wall"), ("assistant", "right"), ("user", "hole")]
    whole = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said)
    assert delta.ids.tolist() == ids_of(renderer, whole + "<|im_start|>assistant\n").tolist()
    talk.answer(ids_of(renderer, "up"))
    assert not talk.observe("end").starts_over


turns = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCABULARY - 1), max_size=12),  # any ids: special ones and broken characters too
        st.booleans(),  # ended by itself
        st.text(max_size=8),
    ),
    max_size=5,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(TEMPLATES)), first=st.text(max_size=8), turns=turns)
def test_sampled_ids_are_a_verbatim_prefix_extension(
    renderers: dict[str, Renderer], name: str, first: str, turns: list[tuple[list[int], bool, str]]
) -> None:
    """The context only ever grows by what was sampled and by what the template adds; or it starts over in full."""
    renderer = renderers[name]
    talk = Conversation(renderer)
    context = talk.begin(first).tolist()
    chat = [("user", first)]
    for sampled, ended, observation in turns:
        ids = sampled + [END_ID] * ended
        said = talk.answer(np.array(ids, np.int32))
        before = context + ids
        delta = talk.observe(observation)
        chat += [("assistant", said), ("user", observation)]
        rendered = renderer.text([{"role": role, "content": text} for role, text in chat])
        if delta.starts_over:
            assert name not in ("chatml", "smollm2") and delta.ids.tolist() == renderer.encode(rendered).tolist()
            context = delta.ids.tolist()
            continue
        context = before + delta.ids.tolist()
        assert context[: len(before)] == before
        added = renderer.text([{"role": "user", "content": observation}]).removeprefix(SYSTEM)
        if name in (
            "chatml",
            "smollm2",
        ):  # behind the answer: the end exactly once, the observation, the next turn's head
            tail = "\n" + added if ended or sampled[-1:] == [END_ID] else "<|im_end|>\n" + added
            assert delta.ids.tolist() == renderer.encode(tail).tolist()


def test_text_equals_that_of_transformers(renderers: dict[str, Renderer], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for name, template in TEMPLATES.items():
        reference = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(make_model_dir(tmp_path / name, template) / "tokenizer.json"),
            bos_token="<s>", eos_token="<|im_end|>", chat_template=template,
        )  # fmt: skip
        chat = [{"role": role, "content": f" {role} says <b>&\n"} for role in ("user", "assistant", "user")]
        assert renderers[name].text(chat) == reference.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        )
        ids = reference.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert renderers[name].encode(renderers[name].text(chat)).tolist() == ids


def test_template_file_named_templates_and_generation_blocks(tmp_path: Path) -> None:
    directory = make_model_dir(tmp_path / "a")
    (directory / "chat_template.jinja").write_text("{% generation %}{{ messages[0].content }}{% endgeneration %}!")
    assert Renderer(directory).text([{"role": "user", "content": "x"}]) == "x!"
    directory = make_model_dir(tmp_path / "b")
    named = [{"name": "tool", "template": "no"}, {"name": "default", "template": "yes {{ bos_token }}"}]
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": named, "bos_token": "<s>"}))
    assert Renderer(directory).text([]) == "yes <s>"


def test_templates_are_sandboxed(tmp_path: Path) -> None:
    escape = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(jinja2.TemplateError):
        Renderer(make_model_dir(tmp_path, escape)).text([])


def test_missing_or_broken_files_are_the_users_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json is missing"):
        Renderer(tmp_path)
    directory = make_model_dir(tmp_path / "a")
    (directory / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match="no chat template"):
        Renderer(directory)
    with pytest.raises(UserError, match="does not parse"):
        Renderer(make_model_dir(tmp_path / "b", "{% for %}"))
    (directory / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match="tokenizer_config"):
        Renderer(directory)
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        Renderer(directory)
