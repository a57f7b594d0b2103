from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.errors import UserError
from rollart_hpc.launch.packing import Needs, Pack, pack

NODE = Needs(16, 8, 64.0)


def items(count: int, needs: Needs, brings: Needs | None = None, kind: str = "p") -> list[Pack]:
    return [Pack(f"{kind}-{i}", needs, brings or Needs()) for i in range(count)]


def test_as_few_nodes_as_possible_then_evened_out() -> None:
    placed, per_node = pack(items(12, Needs(1, 1, 1.0)), NODE, 0, Needs(), "class x")
    assert sorted(placed.values()) == [0] * 6 + [1] * 6
    assert per_node == Needs(6, 6, 6.0)


def test_what_a_node_needs_once_is_counted_once() -> None:
    _, per_node = pack(items(4, Needs(1, 1, 1.0), Needs(2, 0, 10.0)), NODE, 0, Needs(1, 0, 1.0), "class x")
    assert per_node == Needs(4 + 2 + 1, 4, 4.0 + 10.0 + 1.0)


def test_a_process_larger_than_a_node_says_what_would_fit() -> None:
    with pytest.raises(UserError) as caught:
        pack(items(1, Needs(1, 16, 1.0), Needs(2, 0, 4.0)), NODE, 0, Needs(), "class h20 (partition h20)")
    assert "p-0 needs 1 CPUs, 16 GPUs, 1 GB, plus 2 CPUs, 0 GPUs, 4 GB for what runs beside it" in caught.value.what
    assert "a node of class h20 (partition h20) has 16 CPUs, 8 GPUs, 64 GB" in caught.value.what
    assert "at most 14 CPUs, 8 GPUs, 60 GB would fit" in caught.value.fix


def test_too_many_processes_say_how_many_would_fit() -> None:
    engines = items(5, Needs(1, 4, 1.0), kind="engine-compute")
    with pytest.raises(UserError) as caught:
        pack([*items(2, Needs(1, 1, 1.0), kind="trainer"), *engines], NODE, 2, Needs(), "class h800")
    assert "needs 3 nodes of class h800, but a job may have 2" in caught.value.what
    assert "3 of 5 engine-compute" in caught.value.fix and "trainer" not in caught.value.fix


SIZES = st.builds(Needs, st.integers(1, 16), st.integers(0, 8), st.floats(0, 64))


@given(st.lists(SIZES, min_size=1, max_size=30))
def test_nothing_is_overbooked_and_nothing_left_out(sizes: list[Needs]) -> None:
    packs = [Pack(f"p-{i}", needs) for i, needs in enumerate(sizes)]
    placed, per_node = pack(packs, NODE, 0, Needs(), "class x")
    assert per_node.fits(NODE) and set(placed) == {p.name for p in packs}
    used = {node: Needs() for node in placed.values()}
    for p in packs:
        used[placed[p.name]] += p.needs
    assert all(there.fits(per_node) for there in used.values())
    assert sorted(used) == list(range(len(used)))  # no empty node in between
