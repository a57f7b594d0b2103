"""The hub's bench against a real controller, shortly."""

from __future__ import annotations

import json

import pytest

from rollart_hpc.bench import hub
from rollart_hpc.bench.load.counts import Cpu, Window
from rollart_hpc.bench.load.driver import INSTALLS, identities_of
from rollart_hpc.bench.load.payloads import MOST_TURNS, num_turns
from rollart_hpc.errors import UserError


def test_every_engine_serves_and_installs_while_groups_are_trained() -> None:
    settings = hub.Settings(((3, 60),), seconds=0.5)
    (row,) = rows = hub.bench_hub(settings, lambda _: None)
    assert (row.engines, row.slots, row.workers) == (3, 60, 3 + 1 + 2 + 1 + 1)  # engines, env, relays, reward, trainer
    for window in (row.saturated, row.paced):
        assert 0 < window.fewest_turns <= window.most_turns
        assert window.fewest_installs >= INSTALLS and window.versions > 0
        assert window.groups > 0 and window.scores > 0
        assert 0 < window.p50_ms <= window.p99_ms and 0 < window.busy <= 1
        assert window.controller.us_per_turn > 0 and window.load.us_per_turn > 0
    assert row.turns_per_s == row.saturated.turns_per_s > 0 and row.p99_ms == row.paced.p99_ms
    told = json.loads(hub.as_json(settings, rows))
    assert {"turns_per_s", "p99_ms", "cpu_us_per_turn", "register_s", "bound_by"} <= set(told["rows"][0])
    assert "1024 B" in told["payload"] and "CURVE" in told["payload"]
    assert "turns/s" in hub.table(rows)


@pytest.mark.parametrize("wrong", [{"sizes": ((100, 60),)}, {"sizes": ((0, 60),)}, {"sizes": ()}, {"seconds": 0}])
def test_what_can_t_be_measured_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        hub.Settings(**wrong)  # type: ignore[arg-type]


def test_each_number_of_engines_is_measured_with_each_number_of_slots() -> None:
    assert hub.sizes_of([2, 100], [100, 1000]) == ((2, 100), (2, 1000), (100, 100), (100, 1000))
    assert hub.sizes_of([2], None) == ((2, hub.SLOTS),) and hub.sizes_of(None, [500]) == ((hub.ENGINES, 500),)
    assert hub.sizes_of(None, None) == hub.DEFAULT


def test_everybody_has_a_seat_and_every_engine_a_relay_on_its_node() -> None:
    identities = identities_of(2500, 10_000)
    by_role = {
        role: [s for s in identities if s.role == role] for role in ("engine", "relay", "env", "reward", "trainer")
    }
    assert len(identities) == len({s.name for s in identities}) >= 3000
    assert {s.node for s in by_role["engine"]} < {s.node for s in by_role["relay"]}
    assert sum(s.capacity for s in by_role["env"]) == 10_000 and len(by_role["engine"]) == 2500
    assert by_role["trainer"][0].node in {s.node for s in by_role["relay"]}


@pytest.mark.parametrize("slots", [10, 100, 1000, 10_000])
def test_the_longest_trajectories_are_not_stale_before_they_end(slots: int) -> None:
    flow = hub.flow_of(slots, 10.0)
    mean = sum(num_turns(f"a1.g{i}.m0") for i in range(1000)) / 1000
    life = slots * MOST_TURNS / (flow.groups_per_step * flow.group_size * mean)  # in steps
    assert life <= flow.alpha
    assert flow.groups_per_step * flow.group_size * (1 + flow.alpha) >= slots  # so that slots stay busy


def _window(controller: float, controller_main: float, other: float, other_main: float) -> Window:
    cpus = Cpu(controller, controller_main, 1.0), Cpu(other, other_main, 1.0)
    return Window(1.0, 1.0, 1.0, 1.0, *cpus, 1, 1, 5, 5, 5, 1, 1, 0, 1.0)


def test_it_says_what_was_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.os, "sched_getaffinity", lambda pid: {0, 1})
    assert hub.bound_by(_window(1.2, 0.95, 0.6, 0.4)) == "controller"
    assert hub.bound_by(_window(0.6, 0.4, 1.2, 0.95)) == "load"
    assert hub.bound_by(_window(1.0, 0.7, 0.9, 0.6)) == "cores"
    assert hub.bound_by(_window(0.5, 0.4, 0.4, 0.3)) == "-"
