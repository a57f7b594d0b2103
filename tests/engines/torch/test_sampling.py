"""The sampling rule: inverse of the cumulated distribution, greedy at temperature 0."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.engines.torch.sampling import sample


def draw(logits, temperatures, uniforms):
    temperatures = torch.tensor(temperatures)
    any_greedy, all_greedy = bool((temperatures == 0).any()), bool((temperatures == 0).all())
    drawn = None if all_greedy else torch.tensor(uniforms, dtype=torch.float64)
    ids, logprobs = sample(torch.tensor(logits), temperatures, drawn, any_greedy)
    return ids.tolist(), logprobs.tolist()


@pytest.mark.parametrize("uniform, expected", [(0.0, 1), (0.49999, 1), (0.50001, 3), (1 - 2**-53, 3)])
def test_tokens_without_probability_are_never_drawn(uniform, expected):
    logits = [[-math.inf, 1.0, -math.inf, 1.0, -math.inf]]
    assert draw(logits, [1.0], [uniform])[0] == [expected]


def test_mixed_temperatures_in_one_batch():
    logits = [[0.0, 2.0, 1.0]] * 3
    ids, logprobs = draw(logits, [0.0, 1.0, 0.5], [0.0, 0.0, 0.0])
    assert ids == [1, 0, 0]
    plain = torch.log_softmax(torch.tensor(logits[0]), 0)
    sharp = torch.log_softmax(torch.tensor(logits[0]) / 0.5, 0)
    np.testing.assert_allclose(logprobs, [plain[1], plain[0], sharp[0]], atol=1e-6)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=32, allow_subnormal=False), min_size=2, max_size=50),
    st.floats(0.125, 5, width=32),
    st.floats(0, 1, exclude_max=True, allow_subnormal=False),
)
def test_the_token_is_where_the_uniform_falls(logits, temperature, uniform):
    (token,), (logprob,) = draw([logits], [temperature], [uniform])
    probabilities = torch.softmax(torch.tensor(logits, dtype=torch.float64) / temperature, 0).numpy()
    below, above = probabilities[:token].sum(), probabilities[: token + 1].sum()
    assert below - 1e-5 <= uniform <= above + 1e-5
    assert abs(logprob - math.log(max(probabilities[token], 1e-300))) < 1e-3
