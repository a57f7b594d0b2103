from __future__ import annotations

import json

import pytest

from rollart_hpc.bench import packing
from rollart_hpc.errors import UserError


def test_a_row_for_every_workload_and_number_of_ranks() -> None:
    settings = packing.Settings(ranks=(1, 4), groups=16, group_size=4, microbatch_tokens=1000, longest=1000)
    said: list[str] = []
    rows = packing.bench_packing(settings, said.append)
    assert [(row.workload, row.ranks) for row in rows] == [(w, ranks) for w in packing.WORKLOADS for ranks in (1, 4)]
    assert len(said) == len(rows)
    for row in rows:
        assert 0 < row.by_group <= row.whole <= 1
        assert row.streamed >= 0.9 * row.whole
    assert any(row.early > 0 for row in rows if row.ranks > 1)
    told = json.loads(packing.as_json(settings, rows))
    assert told["settings"]["groups"] == 16 and len(told["rows"]) == len(rows)
    assert "1 in 10 long" in packing.table(settings, rows)


@pytest.mark.parametrize("wrong", [{"ranks": ()}, {"ranks": (0,)}, {"groups": 0}, {"microbatch_tokens": 0}])
def test_what_can_t_be_planned_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        packing.Settings(**wrong)  # type: ignore[arg-type]
