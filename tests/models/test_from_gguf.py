from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollart_hpc.envs.render import Conversation, Renderer
from rollart_hpc.errors import UserError
from rollart_hpc.models.from_gguf import open_gguf, write_directory
from tests.models.tiny_gguf import make_llama, write_gguf


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The GGUF file, and the directory made of it."""
    place = tmp_path_factory.mktemp("gguf")
    source, directory = place / "tiny.gguf", place / "model"
    write_gguf(source, make_llama(tied=request.param))
    directory.mkdir()
    write_directory(source, directory)
    return source, directory


def test_the_weights_are_those_that_transformers_reads_from_the_file(made: tuple[Path, Path]) -> None:
    source, directory = made
    ours = AutoModelForCausalLM.from_pretrained(directory)
    theirs = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    expected = dict(theirs.named_parameters())
    assert {name for name, _ in ours.named_parameters()} == set(expected)
    for name, tensor in ours.named_parameters():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, expected[name]), name
    ids = torch.arange(40)[None] % ours.config.vocab_size
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-5, atol=1e-5)


def test_it_is_close_to_the_model_that_was_quantized(made: tuple[Path, Path]) -> None:
    ours = AutoModelForCausalLM.from_pretrained(made[1])
    original = dict(make_llama(ours.config.tie_word_embeddings).named_parameters())
    for name, tensor in ours.named_parameters():
        error = (tensor - original[name]).abs().max() / original[name].abs().max()
        assert error < 0.08, name  # 4 bits; rows in another order would be off by 1
    assert ours.config.rope_parameters["rope_theta"] == 5000.0
    assert ours.config.rms_norm_eps == pytest.approx(1e-6)


def test_numbers_are_cut_into_digits_and_text_comes_back(made: tuple[Path, Path]) -> None:
    renderer = Renderer(made[1])
    ids = renderer.encode("say the 12 é")
    assert [renderer.token_text(int(i)) for i in ids][-6:] == ["Ġ", "1", "2", "Ġ", "Ã", "©"]
    assert renderer.decode(ids) == "say the 12 é"
    assert renderer.encode("<|im_end|>").tolist() == [2]


def test_chat_template_end_of_turn_and_generation_prompt(made: tuple[Path, Path]) -> None:
    renderer = Renderer(made[1])
    reference = AutoTokenizer.from_pretrained(made[1])
    chat = [{"role": "user", "content": "the 12?"}]
    expected = reference.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    talk = Conversation(renderer)
    prompt = talk.begin("the 12?")
    assert prompt.tolist() == expected and renderer.end_ids == {2}
    text = renderer.text(chat)
    assert text.startswith("<|im_start|>system\nYou are a helpful") and text.endswith("<|im_start|>assistant\n")
    assert talk.answer(renderer.encode("12<|im_end|>")) == "12"
    delta = talk.observe("why?")
    assert (
        not delta.starts_over
        and delta.ids.tolist()
        == renderer.encode("\n<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n").tolist()
    )


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"no model at all" * 20)
    with pytest.raises(UserError, match="is not a GGUF file"):
        open_gguf(tmp_path / "a.gguf")
    write_gguf(tmp_path / "b.gguf", make_llama(tied=True), architecture="gemma3")
    with pytest.raises(UserError, match="architecture gemma3"):
        open_gguf(tmp_path / "b.gguf")
