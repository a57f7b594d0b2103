"""Log-probs in slices are those of one piece, and so are their gradients."""

from __future__ import annotations

import pytest
import torch

from rollart_hpc.trainers.fsdp import logprobs
from rollart_hpc.trainers.fsdp.logprobs import scores_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_slices_equal_one_piece(with_entropy: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    logits, targets = torch.randn(13, 31).to(dtype), torch.randint(0, 31, (13,))

    def run() -> list[torch.Tensor]:
        leaf = logits.clone().requires_grad_()
        chosen, entropy = scores_of(leaf, targets, 0.7, with_entropy=with_entropy)
        found = [chosen] if entropy is None else [chosen, entropy]
        torch.stack([(part * torch.arange(13.0)).sum() for part in found]).sum().backward()
        assert leaf.grad is not None and (entropy is not None) == with_entropy
        return [*(part.detach() for part in found), leaf.grad]

    whole = run()
    monkeypatch.setattr(logprobs, "SLICE_NUMBERS", 4 * 31)
    for one, other in zip(whole, run(), strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)
    assert whole[0].dtype == torch.float32


def test_a_vocabulary_wider_than_a_slice_goes_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = torch.randn(3, 31), torch.tensor([1, 2, 3])
    expected = torch.log_softmax(logits, -1)[range(3), targets]
    monkeypatch.setattr(logprobs, "SLICE_NUMBERS", 1)
    with torch.no_grad():
        assert torch.equal(scores_of(logits, targets, 1.0)[0], expected)
