"""The deficit counter: batches follow the mix exactly, whatever happens between."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.flow.mix import TaskMix

WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 10), min_size=1)


@given(WEIGHTS, st.integers(1, 64), st.integers(1, 30))
def test_every_batch_is_full_and_the_mix_is_met(weights, slots, steps):
    mix = TaskMix(weights, slots)
    dealt = Counter()
    for step in range(steps):
        quota = mix.quota(step)
        assert sum(quota.values()) == slots
        dealt.update(quota)
    total = sum(weights.values())
    for task, weight in weights.items():
        assert abs(dealt[task] - steps * slots * weight / total) < len(weights)


@given(WEIGHTS, st.integers(1, 32))
def test_quota_is_the_same_whenever_asked(weights, slots):
    mix = TaskMix(weights, slots)
    assert [mix.quota(0), mix.quota(1)] == [mix.quota(0), mix.quota(1)]


@given(st.integers(1, 32), st.data())
def test_a_removed_task_leaves_its_places_to_the_others(slots, data):
    mix = TaskMix({"a": 1.0, "b": 1.0}, slots)
    taken_a = data.draw(st.integers(0, mix.quota(0)["a"]))
    mix.remove("a", 0, {"a": taken_a})
    assert mix.quota(0) == {"a": taken_a, "b": slots - taken_a}
    assert mix.quota(1) == {"a": 0, "b": slots}
    assert mix.tasks == ["b"]


@given(WEIGHTS, st.integers(1, 32), st.integers(0, 5))
def test_a_restored_mix_goes_on_as_the_saved_one(weights, slots, steps):
    mix = TaskMix(weights, slots)
    for step in range(steps):
        mix.quota(step)
    twin = TaskMix(weights, slots)
    twin.restore(mix.snapshot())
    assert [mix.quota(steps + i) for i in range(3)] == [twin.quota(steps + i) for i in range(3)]


def test_a_resumed_run_may_have_other_weights_and_sizes():
    mix = TaskMix({"a": 1.0, "b": 1.0}, 4)
    mix.quota(5)
    other = TaskMix({"a": 3.0, "b": 1.0}, 4)
    other.restore(mix.snapshot())
    assert other.quota(5) == {"a": 3, "b": 1}
    smaller = TaskMix({"a": 1.0, "b": 1.0}, 2)
    smaller.restore(mix.snapshot(), quarantined=["b"])
    assert smaller.quota(5) == {"a": 2, "b": 0}
