"""Scores in slices are those of one piece, and so are their gradients; full logits never exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, GraniteConfig, Qwen3Config

from rollart_hpc.errors import SiteError
from rollart_hpc.trainers import slices
from rollart_hpc.trainers.fsdp import logprobs
from rollart_hpc.trainers.fsdp.logprobs import Head, scores_of
from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.world import World
from tests.trainers.fsdp.test_trainer import gradients
from tests.trainers.plain import PlainTrainer, make_config, make_groups, make_model

TOKENS, WIDTH, VOCAB = 13, 8, 31
ODD = 97  # a vocabulary: no other dimension of the model is as large


def make_head(dtype: torch.dtype = torch.float32, **how: float) -> Head:
    torch.manual_seed(1)
    return Head(torch.nn.Linear(WIDTH, VOCAB).to(dtype), **how)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("how", [{}, {"softcap": 2.0, "factor": 0.5}], ids=["plain", "softcap"])
def test_slices_equal_one_piece(
    how: dict[str, float], with_entropy: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = make_head(dtype, **how)
    hidden, targets = torch.randn(TOKENS, WIDTH).to(dtype), torch.randint(0, VOCAB, (TOKENS,))

    def run() -> list[torch.Tensor]:
        leaf = hidden.clone().requires_grad_()
        head.linear.zero_grad()
        scores = scores_of(head, leaf, targets, 0.7, with_entropy=with_entropy)
        (scores * torch.arange(float(TOKENS))[:, None]).sum().backward()
        assert scores.shape == (TOKENS, 1 + with_entropy) and scores.dtype == torch.float32
        found = [scores, leaf.grad, head.linear.weight.grad, head.linear.bias.grad]
        return [tensor.detach().clone() for tensor in found if tensor is not None]

    whole = run()
    monkeypatch.setattr(slices, "SLICE_NUMBERS", 4 * VOCAB)
    close = 1e-5 if dtype == torch.float32 else 2e-2
    for one, other in zip(whole, run(), strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(other, one, atol=close * float(one.abs().max()), rtol=close)


def test_a_frozen_head_gets_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    head = make_head()
    head.linear.requires_grad_(False)
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    monkeypatch.setattr(slices, "SLICE_NUMBERS", 1)  # a vocabulary wider than a slice goes row by row
    scores_of(head, hidden, torch.zeros(TOKENS, dtype=torch.long), 1.0).sum().backward()
    assert hidden.grad is not None and head.linear.weight.grad is None


def test_sums_over_many_slices_are_exact_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Added up in bfloat16, 512 slices would lose most digits."""
    head = make_head(torch.bfloat16)
    hidden, targets = torch.randn(512, WIDTH).bfloat16(), torch.randint(0, VOCAB, (512,))
    exact = Head(torch.nn.Linear(WIDTH, VOCAB))
    exact.linear.load_state_dict({name: tensor.float() for name, tensor in head.linear.state_dict().items()})
    scores_of(exact, hidden.float(), targets, 1.0).sum().backward()
    monkeypatch.setattr(slices, "SLICE_NUMBERS", VOCAB)
    scores_of(head, hidden, targets, 1.0).sum().backward()
    assert head.linear.weight.grad is not None and exact.linear.weight.grad is not None
    gap = (head.linear.weight.grad.float() - exact.linear.weight.grad).norm() / exact.linear.weight.grad.norm()
    assert gap < 0.01


class Widest(TorchDispatchMode):
    """The most rows of logits in any tensor that an operation makes."""

    def __init__(self, vocabulary: int, not_rows: int) -> None:
        super().__init__()
        self.rows, self._vocabulary, self._not_rows = 0, vocabulary, not_rows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.ndim >= 2 and self._vocabulary in tensor.shape:
                rows = tensor.numel() // self._vocabulary
                self.rows = max(self.rows, 0 if rows == self._not_rows else rows)  # the head's own weight
        return out


@pytest.mark.parametrize("changes", [{}, {"algorithm__entropy": 0.1, "algorithm__kl": 0.1}, {"trainer__lora__rank": 2}])
def test_full_logits_exist_neither_in_forward_nor_in_backward(
    changes: dict[str, Any], tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_model(tmp_path / "model", tied=False, vocab_size=ODD)
    config = make_config(trainer__microbatch_tokens=4096, **changes)
    whole, cut = (FsdpTrainer(config, directory, world) for _ in range(2))
    hidden_size = cut._model.config.hidden_size
    with Widest(ODD, hidden_size) as seen:
        whole.accumulate(make_groups(0), last=True)
        whole._train(whole._batch.waiting.rest())
    assert seen.rows > 100, "the mode sees logits"
    monkeypatch.setattr(slices, "SLICE_NUMBERS", 5 * ODD)
    with Widest(ODD, hidden_size) as seen:
        cut.accumulate(make_groups(0), last=True)
        cut._train(cut._batch.waiting.rest())
    assert seen.rows == 5
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(cut)[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_a_family_that_scales_its_logits(tmp_path: Path, world: World) -> None:
    directory = make_model(tmp_path / "model", family=GraniteConfig, logits_scaling=4.0)
    config = make_config()
    plain, trainer = PlainTrainer(config, directory), FsdpTrainer(config, directory, world)
    trainer.accumulate(make_groups(0))
    assert trainer.step().metrics["loss"] == pytest.approx(plain.step(make_groups(0)), abs=1e-5)


def test_a_head_that_is_not_known_is_refused(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_model(tmp_path / "model", family=GraniteConfig, logits_scaling=4.0)
    monkeypatch.setattr(
        logprobs.Head, "logits", lambda head, hidden, weight: torch.nn.functional.linear(hidden, weight)
    )
    with pytest.raises(SiteError, match="GraniteForCausalLM makes its logits in a way"):
        FsdpTrainer(make_config(), directory, world)


def test_a_head_that_is_not_linear_is_refused() -> None:
    model = AutoModelForCausalLM.from_config(Qwen3Config(num_hidden_layers=1, hidden_size=8, intermediate_size=8))
    model.lm_head = torch.nn.Identity()
    with pytest.raises(SiteError, match="Qwen3ForCausalLM makes its logits in a way"):
        logprobs.head_of(model)
