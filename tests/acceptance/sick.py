"""A bad engine and a bad env worker join a live run with default settings: when are they set aside, at what cost?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.acceptance.live import Live, live
from tests.acceptance.reliability import store
from tests.backends.installing import install

HERE = Path(__file__).parent / "sick"
LIMITS_S = {"engine": 120.0, "env": 60.0}
COST = 0.05
# Bound by the environment's latency, not by two cores that others use too: turns/s then repeat within a percent.
STEADY = (
    "timeouts.silence_s=20", "env.slots=24", "flow.groups_per_step=8", "checkpoint.every=50",
    "tasks.frozenlake.trouble.turn_latency.mean_s=1.0", "tasks.sorting.trouble.turn_latency.mean_s=1.0",
)  # fmt: skip


def sick(keep: Path, window_s: float = 120.0) -> bool:
    site = install(keep, HERE)
    engine = [*STEADY, "engine.kind=sick"]
    lake = [*STEADY, f"tasks.frozenlake.environment={HERE / 'sick_lake.py'}:SickLake"]
    figures: dict[str, Any] = {}
    with live(keep, "bad-engine", *engine, path=site) as run:
        figures["engine"] = measure(run, "engine", window_s, "engine", "--pool", "compute", "--name", "engine-bad")
    with live(keep, "bad-env", *lake) as run:
        figures["env"] = measure(run, "env", window_s, "env", "--name", "env-bad")
    store("sick", figures)
    return all(is_good(part) for part in figures.values())


def measure(run: Live, role: str, window_s: float, *join: str) -> dict[str, Any]:
    name = join[-1]
    run.until_step(5)
    before = run.turns_per_s(window_s)
    run.join(*join)
    run.until(lambda: run.status()["workers"][role]["alive"] == 3, f"{name} to join")
    try:
        aside_s = run.until(
            lambda: name in run.status().get("aside", {}), f"{name} to be set aside", 2 * LIMITS_S[role]
        )
    except AssertionError as error:
        print(error, flush=True)
        aside_s = None
    after = run.turns_per_s(window_s)
    quarantined = [task for task, row in run.status()["tasks"].items() if row["quarantined"]]
    figures = {"aside_s": aside_s, "limit_s": LIMITS_S[role], "turns_before": before, "turns_after": after}
    print(figures, flush=True)
    return {**figures, "window_s": window_s, "quarantined": quarantined}


def is_good(part: dict[str, Any]) -> bool:
    is_soon = part["aside_s"] is not None and part["aside_s"] <= part["limit_s"]
    return is_soon and part["turns_after"] >= (1 - COST) * part["turns_before"] and not part["quarantined"]
