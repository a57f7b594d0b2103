from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.config.algorithms import Part, entries
from tests.trainers.algorithms.making import tokens

ALL = entries(Part.CORRECTION)
W = [1.0, 4.0, 0.5, 1.1]  # proximal / behaviour
GAPS = [math.log(w) for w in W]


def weights(
    name: str, gaps: list[float] = GAPS, advantages: list[float] | None = None, **params: object
) -> list[float]:
    """Two samples of two tokens; the second sample has two turns."""
    given_tokens = tokens(
        gaps, [0.0] * len(gaps), advantages or [1.0] * len(gaps), samples=[0, 0, 1, 1], turns=[0, 0, 1, 2],
        is_decoupled=True,
    )  # fmt: skip
    return list(ALL[name].function(given_tokens, **params).tolist())


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("none", {}, [1, 1, 1, 1]),
        ("token", {}, [1, 2, 0.5, 1.1]),
        ("token", {"low": 0.6, "high": 3.0}, [1, 3, 0.6, 1.1]),
        ("token", {"low": 0.6, "high": 3.0, "how": "mask"}, [1, 0, 0, 1.1]),
        ("token", {"low": 0.0, "high": 1e9, "how": "mask"}, W),
        ("sequence", {}, [2, 2, 0.55, 0.55]),
        ("sequence", {"how": "mask"}, [0, 0, 0.55, 0.55]),
        ("geometric", {"high": 9.0}, [2, 2, math.sqrt(0.55), math.sqrt(0.55)]),
        ("geometric", {}, [1.2, 1.2, math.sqrt(0.55), math.sqrt(0.55)]),
        ("turn", {"high": 9.0}, [2, 2, 0.5, 1.1]),
        ("geometric_mask", {"low": 0.7, "high": 1.5}, [0, 0, 1, 1]),
        ("turn_mask", {}, [0, 0, 0, 1]),
        ("veto", {"high": 3.0}, [0, 0, 1, 1]),
        ("veto", {}, [1, 1, 1, 1]),
    ],
)
def test_known_weights(name: str, params: dict[str, object], expected: list[float]) -> None:
    assert weights(name, **params) == pytest.approx(expected)


def test_drift_mask_drops_bad_samples_that_the_policy_has_left() -> None:
    left = [-2.0, -1.0, -0.1, 0.0]
    assert weights("drift_mask", left, [-1.0, -1.0, -1.0, -1.0]) == [0, 0, 1, 1]
    assert weights("drift_mask", left, [1.0, 1.0, -1.0, -1.0]) == [1, 1, 1, 1]


def test_a_cap_of_1_on_small_weights_is_exact() -> None:
    small = [math.log(w) for w in (0.2, 0.9, 1.0, 0.5)]
    assert weights("token", small, high=1.0) == pytest.approx([0.2, 0.9, 1.0, 0.5])


@pytest.mark.parametrize("name", ALL)
@given(st.lists(st.floats(-1e4, 1e4), min_size=4, max_size=4))
@settings(max_examples=40)
def test_weights_are_finite_and_never_negative(name: str, gaps: list[float]) -> None:
    assert all(math.isfinite(w) and w >= 0 for w in weights(name, gaps))


@pytest.mark.parametrize("name", ALL)
def test_data_of_the_same_policy_is_left_alone(name: str) -> None:
    assert weights(name, [0.0] * 4, [-1.0] * 4) == [1.0] * 4
