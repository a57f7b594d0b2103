"""The bench of weights with few bytes: that it measures what it says, not how fast this machine is."""

from __future__ import annotations

import json

import pytest

from rollart_hpc.bench import weights
from rollart_hpc.errors import UserError
from tests.weights.test_mpi import why_not


@pytest.mark.slow
def test_relays_against_the_bare_collective_and_an_install_against_memcpy() -> None:
    collectives = ("gloo",) if why_not() else ("gloo", "mpi")
    settings = weights.Settings(collectives, total_mb=32, bucket_mb=16, pairs=1)
    rows, exposed = weights.bench_weights(settings, lambda _: None)
    assert [row.collective for row in rows] == list(collectives)
    assert all(row.ratio_to_raw > 0 and row.ratio_less_checksum > row.ratio_to_raw for row in rows)
    told = json.loads(weights.as_json(settings, rows, exposed))
    assert {"ratio_to_raw", "exposed_to_memcpy", "rows"} <= set(told) and exposed.rebuild_ms > 0
    assert "gloo" in weights.table(rows, exposed)


def test_what_can_t_be_measured_is_refused() -> None:
    with pytest.raises(UserError):
        weights.Settings(bucket_mb=1)
