"""The newest report of each engine counts, and nothing of one that is gone."""

from __future__ import annotations

from rollart_hpc.observe.status import PoolStatus
from rollart_hpc.roles.kv_use import KvUse


def test_an_engine_that_joins_again_is_counted_once() -> None:
    use = KvUse()
    for capacity in (100, 300):
        use.joined("e0", "compute", capacity)
        use.saw("e0", 30)
    assert use.pools == {"compute": PoolStatus(engines=1, kv_tokens=300, kv_used_tokens=30)}
    use.left("e0")
    use.left("e0")
    assert use.pools == {"compute": PoolStatus()}


def test_an_engine_that_does_not_know_its_capacity_says_nothing_of_use() -> None:
    use = KvUse()
    use.joined("e0", "compute", 0)
    use.saw("e0", 30)
    assert use.pools == {"compute": PoolStatus(engines=1)} and use.take_peaks() == {}


def test_a_peak_is_of_the_pool_and_is_taken_once() -> None:
    use = KvUse()
    for name in ("e0", "e1"):
        use.joined(name, "compute", 100)
    for name, used in (("e0", 80), ("e1", 80), ("e0", 10)):
        use.saw(name, used)
    assert use.take_peaks() == {"compute": 0.8}
    assert use.take_peaks() == {}
