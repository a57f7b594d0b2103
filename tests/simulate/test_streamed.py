"""The real controller under the events of a simulated cluster does what the simulated core did."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollart_hpc.simulate.build import build
from tests.acceptance.streamed import Streamed
from tests.simulate.test_cluster import case_of


def test_both_cores_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    case = case_of()
    streamed = Streamed(tmp_path / "run", case.config, build(case, steps=8), skipped=20)
    cost = streamed.run(4)
    simulated, real = streamed.cluster.core, streamed.controller.core
    assert real.version == simulated.version == 4
    assert real.tally.snapshot() == simulated.tally.snapshot()
    assert sorted(real.trajectories.requests) == sorted(simulated.trajectories.requests)
    assert not streamed.controller.hub.counters
    assert cost.turns > 100 and cost.us_per_turn > 0 and cost.messages > cost.turns
