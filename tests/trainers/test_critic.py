from __future__ import annotations

import numpy as np
import pytest
import torch

from rollart_hpc.trainers.critic import explained_variance, value_loss
from tests.trainers.plain import make_groups


def test_the_value_loss_ignores_gains_beyond_the_clip() -> None:
    values = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    before, returns = torch.zeros(3, dtype=torch.float64), torch.tensor([1.0, 3.0, -1.0], dtype=torch.float64)
    loss = value_loss(values, before, returns, 0.5)
    assert loss.tolist() == pytest.approx([0.5, 0.5 * 2.5**2, 4.5])
    loss.sum().backward()
    assert values.grad.tolist() == pytest.approx([-1.0, 0.0, 3.0])  # clipped where moving on would help
    assert value_loss(values, before, returns, 0.0).tolist() == pytest.approx([0.5, 2.0, 4.5])


def test_explained_variance() -> None:
    (sample, other, *_) = make_groups(0)[0].samples
    sample.returns, sample.values = np.array([1.0, 0.0], np.float32), np.array([1.0, 0.0], np.float32)
    assert explained_variance([sample, other]) == 1.0
    sample.values = np.array([0.5, 0.5], np.float32)
    assert explained_variance([sample]) == 0.0
    sample.returns = np.zeros(2, np.float32)
    assert explained_variance([sample]) == 0.0
    assert explained_variance([other]) == 0.0
