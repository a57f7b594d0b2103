from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.config.algorithms import Part, Scope, entries
from rollart_hpc.errors import UserError
from rollart_hpc.trainers.algorithms import estimators
from rollart_hpc.trainers.algorithms.plays import Play, per_token
from tests.trainers.algorithms.making import TWO_GROUPS, play, plays

ALL = entries(Part.ESTIMATOR)
ABSOLUTE = ("raw", "turn_return", "reinforce")  # give equal rewards an advantage, or compare over groups
finite = st.floats(-100, 100, allow_subnormal=False)
a_play = st.builds(
    lambda reward, turns, state: play(reward, turns, states=(state,) * len(turns)),
    finite, st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 1),
)  # fmt: skip
batches = st.lists(st.lists(a_play, min_size=1, max_size=5), min_size=1, max_size=4)


def flat(advantages: object, groups: list[list[Play]]) -> np.ndarray:
    parts = [per_token(a, p.num_tokens) for values, group in zip(advantages, groups) for a, p in zip(values, group)]
    return np.concatenate(parts)


@pytest.mark.parametrize(
    ("name", "params", "high", "low"),
    [
        ("grpo", {}, 1.0954, -0.7303),
        ("grpo", {"normalise_std": False}, 0.6, -0.4),
        ("dr_grpo", {}, 0.6, -0.4),
        ("rloo", {}, 0.75, -0.5),
        ("max_rl", {}, 1.5, -1.0),
        ("raw", {}, 1.0, 0.0),
    ],
)
def test_known_advantages_of_a_group(name: str, params: dict[str, bool], high: float, low: float) -> None:
    (found,) = ALL[name].function(plays(TWO_GROUPS[0]), **params)
    assert found == pytest.approx([high, low, low, high, low], abs=1e-4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lite_ppo", [[1.1619, -0.7746], [0.3873, -1.5492]]),
        ("reinforce", [[0.4, -0.6], [0.4, -0.6]]),
        ("reinforce_pp", [[0.7746, -1.1619], [0.7746, -1.1619]]),  # a token each: the same over sequences
    ],
)
def test_known_advantages_of_a_batch(name: str, expected: list[list[float]]) -> None:
    groups = plays(*TWO_GROUPS)
    found = ALL[name].function(groups)
    for values, rewards, (high, low) in zip(found, TWO_GROUPS, expected):
        wanted = [high if reward else low for reward in rewards]
        assert [float(np.ravel(v)[0]) for v in values] == pytest.approx(wanted, abs=1e-4)


def test_reinforce_pp_weighs_tokens_and_discounts_to_the_last() -> None:
    groups = [[play(1.0, [1, 2]), play(0.0, [1])]]
    tokens = flat(estimators.reinforce_pp(groups), groups)
    returns = np.array([1.0, 1.0, 1.0, 0.0])
    assert tokens == pytest.approx((returns - 0.75) / np.sqrt(returns.var(ddof=1) + 1e-8))
    halved = flat(estimators.reinforce_pp(groups, gamma=0.5), groups)
    returns = np.array([0.25, 0.5, 1.0, 0.0])
    assert halved == pytest.approx((returns - returns.mean()) / np.sqrt(returns.var(ddof=1) + 1e-8))


def test_reinforce_pp_baseline_subtracts_the_mean_of_its_group_first() -> None:
    groups = [[play(1.0, [3]), play(0.0)], [play(5.0), play(5.0)]]
    tokens = flat(estimators.reinforce_pp_baseline(groups), groups)
    centred = np.array([0.5, 0.5, 0.5, -0.5, 0.0, 0.0])
    assert tokens == pytest.approx((centred - centred.mean()) / np.sqrt(centred.var(ddof=1) + 1e-8))


def test_turn_return_is_discounted_per_turn() -> None:
    (group,) = [[play(1.0, [2, 1, 3]), play(0.0)]]
    first, second = estimators.turn_return([group], gamma=0.95)[0]
    assert first == pytest.approx([0.9025, 0.9025, 0.95, 1, 1, 1])
    assert second == pytest.approx([0.0])
    assert estimators.turn_return([group], baseline="group")[0][1] == pytest.approx([-0.5])


def test_gigpo_compares_turns_that_saw_the_same() -> None:
    """Both begin in state 7; the winner's second turn was alone in its state."""
    group = [play(1.0, [1, 2], states=(7, 8)), play(0.0, [1], states=(7,))]
    won, lost = estimators.gigpo([group], gamma=0.5, step_weight=2.0, normalise_std=False)[0]
    assert won == pytest.approx([0.5 + 2 * 0.25, 0.5, 0.5])
    assert lost == pytest.approx([-0.5 - 2 * 0.25])
    unknown = [play(1.0, [1, 2]), play(0.0, [1])]
    assert estimators.gigpo([unknown], normalise_std=False)[0][0] == pytest.approx([0.5] * 3)


@pytest.mark.parametrize("name", ALL)
@given(batches)
@settings(max_examples=25)
def test_advantages_are_finite_and_fit_the_plays(name: str, groups: list[list[Play]]) -> None:
    found = ALL[name].function(groups)
    assert [len(values) for values in found] == [len(group) for group in groups]
    tokens = flat(found, groups)
    assert len(tokens) == sum(p.num_tokens for group in groups for p in group)
    assert np.isfinite(tokens).all()


@pytest.mark.parametrize("name", [name for name in ALL if ALL[name].scope is Scope.GROUP])
@given(batches)
@settings(max_examples=25)
def test_a_group_scope_needs_its_group_only(name: str, groups: list[list[Play]]) -> None:
    whole = ALL[name].function(groups)
    alone = [ALL[name].function([group])[0] for group in groups]
    assert flat(whole, groups).tolist() == flat(alone, groups).tolist()


@pytest.mark.parametrize("name", [name for name in ALL if name not in ABSOLUTE and name != "reinforce_pp"])
@given(finite, st.integers(1, 5))
@settings(max_examples=25)
def test_equal_rewards_teach_nothing(name: str, reward: float, size: int) -> None:
    groups = [[play(reward, [2]) for _ in range(size)], [play(reward, [2])]]
    assert np.abs(flat(ALL[name].function(groups), groups)).max() < 1e-6


@given(st.lists(finite, min_size=1, max_size=9), st.booleans())
def test_advantages_of_grpo_keep_the_order_of_rewards(rewards: list[float], normalise_std: bool) -> None:
    (found,) = estimators.grpo(plays(rewards), normalise_std=normalise_std)
    assert abs(sum(found)) < 1e-6
    assert all((a > b) == (x > y) or a == b for a, x in zip(found, rewards) for b, y in zip(found, rewards))


def test_rewards_of_turns_add_up_to_the_reward() -> None:
    one = play(1.0, [2, 1, 3], turn_rewards=(0.5, 0.0, -0.25))
    assert one.by_turn.tolist() == [0.5, 0.0, 0.5]
    assert one.by_token.tolist() == [0, 0.5, 0, 0, 0, 0.5]
    assert play(1.0, [2, 1]).by_turn.tolist() == [0.0, 1.0]
    assert play(0.0, []).by_token.tolist() == []


def test_returns_of_turns_use_their_rewards() -> None:
    one = play(1.0, [2, 1], turn_rewards=(0.5, 0.5))
    assert estimators.turn_return([[one]], gamma=0.5)[0][0] == pytest.approx([0.75, 0.75, 0.5])
    other = play(0.0, [1])
    centred = estimators.turn_return([[one, other]], gamma=0.5, baseline="group")[0]
    assert centred[0] == pytest.approx([0.5, 0.5, 0.0])  # the last turn keeps 0.5 - 0.5, the first 0.5 + 0.5 x 0
    assert centred[1] == pytest.approx([-0.5])
    group = [play(1.0, [1, 1], states=(7, 8), turn_rewards=(1.0, 0.0)), play(1.0, [1, 1], states=(7, 8))]
    first, second = estimators.gigpo([group], gamma=0.5, normalise_std=False)[0]
    assert first == pytest.approx([0.25, -0.5]) and second == pytest.approx([-0.25, 0.5])


def test_gae_skips_what_was_observed() -> None:
    """R = [0, 0, -, 1], V = [0.5, 0.6, -, 0.7] of two turns of two tokens and one."""
    one = play(1.0, [2, 1], values=np.array([0.5, 0.6, 0.7]))
    assert estimators.surprises(one, 1.0, 0.9) == pytest.approx([0.433, 0.37, 0.3])
    assert estimators.returns_of(one, lam_returns=0.9) == pytest.approx([0.933, 0.97, 1.0])
    assert estimators.returns_of(one, lam=0.3) == pytest.approx([1.0] * 3)
    whitened = estimators.gae([[one]], lam=0.9)[0][0]
    raw = np.array([0.433, 0.37, 0.3])
    assert whitened == pytest.approx((raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8))


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=7), st.floats(0, 1), st.floats(0, 1))
def test_gae_against_its_definition(tokens: list[tuple[float, float]], gamma: float, lam: float) -> None:
    """Each token a turn with its own reward."""
    rewards, values = zip(*tokens)
    one = play(sum(rewards), [1] * len(tokens), turn_rewards=rewards, values=np.array(values))
    expected, later, value = [], 0.0, 0.0
    for reward, now in reversed(tokens):
        later = reward + gamma * value - now + gamma * lam * later
        expected.insert(0, later)
        value = now
    assert estimators.surprises(one, gamma, lam) == pytest.approx(expected, abs=1e-6)


@given(st.lists(finite, min_size=1, max_size=6), st.floats(0, 1))
def test_returns_against_their_definition(values: list[float], gamma: float) -> None:
    expected = [sum(gamma**k * v for k, v in enumerate(values[i:])) for i in range(len(values))]
    assert estimators.to_go(np.array(values), gamma) == pytest.approx(expected, abs=1e-9)


def test_advantages_that_do_not_fit_the_play_are_told() -> None:
    with pytest.raises(UserError, match=r"shape \(2,\) for a play of 3"):
        per_token(np.zeros(2), 3)
