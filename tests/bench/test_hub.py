"""The hub's bench against a real controller, shortly."""

from __future__ import annotations

import json

import pytest

from rollart_hpc.bench import hub
from rollart_hpc.errors import UserError


def test_a_row_for_every_number_of_slots() -> None:
    settings = hub.Settings(slots=(10, 500), seconds=0.5)
    rows = hub.bench_hub(settings, lambda _: None)
    assert [row.slots for row in rows] == [10, 500]
    assert all(row.turns_per_s > 0 for row in rows)
    told = json.loads(hub.as_json(settings, rows))
    assert {"turns_per_s", "p99_ms", "cpu_us_per_turn"} <= set(told["rows"][0]) and "1024 B" in told["payload"]
    assert "turns/s" in hub.table(rows)


@pytest.mark.parametrize("wrong", [{"slots": (15,)}, {"slots": ()}, {"seconds": 0}])
def test_what_can_t_be_measured_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        hub.Settings(**wrong)  # type: ignore[arg-type]
