"""A long run with 1,000 real environment slots: memory and descriptors of every process, and the run directory."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.acceptance.live import Live, live
from tests.acceptance.reliability import store

SLOTS, ENV_WORKERS = 1000, 2
SAMPLES = 120
GROWTH = 0.10  # of the memory of a process over the second half
DISK_MB_PER_HOUR = 2000.0
PAGE = os.sysconf("SC_PAGE_SIZE")
MB = 1 << 20
# A cheap task with one short turn, and waiting as in a real environment; groups enough for all slots.
OVERRIDES = (
    f"env.workers={ENV_WORKERS}", f"env.slots={SLOTS // ENV_WORKERS}", "flow.groups_per_step=50", "flow.group_size=8",
    "flow.redundancy=2", "flow.alpha=3", "timeouts.silence_s=60", "checkpoint.every=5",
    "tasks.frozenlake.trouble.turn_latency.mean_s=5", "tasks.sorting.trouble.turn_latency.mean_s=5",
)  # fmt: skip


def soak(keep: Path, seconds: float = 3600.0) -> bool:
    with live(keep, "soak", *OVERRIDES) as run:
        samples = observe(run, seconds)
        status = run.status()
    first, last = samples[0], samples[-1]
    names = [name for name in last["memory"] if name in first["memory"]]
    figures: dict[str, Any] = {
        "slots": SLOTS,
        "env_workers": ENV_WORKERS,
        "seconds": last["time_s"] - first["time_s"],
        "steps": last["step"] - first["step"],
        "turns": last["turns"] - first["turns"],
        "trajectories": sum(task["trajectories"] for task in status["tasks"].values()),
        "processes": {name: line_of(samples, "memory", name, "files") for name in names},
        "directory": {part: line_of(samples, "directory", part) for part in last["directory"]},
    }
    store("soak", figures)
    for kind in ("processes", "directory"):
        for name, row in figures[kind].items():
            print(f"{name}: {row['first']:.1f} -> {row['last']:.1f} MB, {row['per_hour']:+.1f} MB/h", flush=True)
    return is_bounded(figures)


def is_bounded(figures: dict[str, Any]) -> bool:
    hours = figures["seconds"] / 2 / 3600
    memory = all(row["per_hour"] * hours <= GROWTH * row["first"] + 5 for row in figures["processes"].values())
    files = all(row["files_last"] <= 1.2 * row["files_first"] + 50 for row in figures["processes"].values())
    return memory and files and figures["directory"]["all"]["per_hour"] <= DISK_MB_PER_HOUR and figures["steps"] > 0


def observe(run: Live, seconds: float) -> list[dict[str, Any]]:
    """From when all slots are used and a checkpoint was made."""
    run.until(lambda: run.status().get("playing", 0) >= 0.9 * SLOTS, "all slots to play")
    run.until(lambda: run.run.newest_checkpoint() is not None, "a checkpoint")
    began_s, samples = time.monotonic(), []
    for number in range(SAMPLES + 1):
        time.sleep(max(0.0, began_s + number * seconds / SAMPLES - time.monotonic()))
        assert run.process.poll() is None, "the run has ended"
        samples.append(look(run, time.monotonic() - began_s))
    return samples


def look(run: Live, time_s: float) -> dict[str, Any]:
    pids = {**run.pids(), "supervisor": run.process.pid}
    memory = {name: rss(pid) for name, pid in pids.items()}
    files = {name: num_files(pid) for name, pid in pids.items()}
    children = family()
    for name, pid in pids.items():
        if name.startswith("env"):
            rest = below(pid, children)
            memory[f"{name}, its {SLOTS // ENV_WORKERS} environments"] = sum(map(pss, rest))
            files[f"{name}, its {SLOTS // ENV_WORKERS} environments"] = sum(map(num_files, rest))
    return {
        "time_s": time_s, "step": run.status()["step"], "turns": run.turns(), "memory": memory, "files": files,
        "directory": directory(run.run.path),
    }  # fmt: skip


def family() -> dict[int, list[int]]:
    """The children of every process."""
    found: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            found.setdefault(parent, []).append(int(path.name))
    return found


def below(pid: int, children: dict[int, list[int]]) -> list[int]:
    return [found for child in children.get(pid, []) for found in (child, *below(child, children))]


def pss(pid: int) -> float:
    """In MB, its share of what it shares with others counted once: environments are forked from one process."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024
    return 0.0


def rss(pid: int) -> float:
    """In MB; 0 if it is gone."""
    with suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / MB
    return 0.0


def num_files(pid: int) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def directory(path: Path) -> dict[str, float]:
    """In MB, by what it is."""
    parts: dict[str, float] = {}
    for place, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                full = Path(place) / name
                part = full.relative_to(path).parts[0]
                if part == "attempts":
                    part = full.parent.name  # logs, trace
                parts[part] = parts.get(part, 0.0) + full.lstat().st_size / MB
    kept = {part: size for part, size in parts.items() if size >= 0.1}
    return {"all": sum(parts.values()), **kept}


def line_of(samples: list[dict[str, Any]], kind: str, name: str, counted: str = "") -> dict[str, float]:
    """First and last value, and the slope of the second half."""
    half = [sample for sample in samples[len(samples) // 2 :] if name in sample[kind]]
    values = [sample[kind][name] for sample in half]
    hours = [sample["time_s"] / 3600 for sample in half]
    steps = [float(sample["step"]) for sample in half]
    found = {
        "first": samples[0][kind].get(name, 0.0),
        "last": samples[-1][kind][name],
        "per_hour": slope(hours, values),
        "per_step": slope(steps, values),
    }
    if counted:
        found |= {"files_first": samples[0][counted].get(name, 0), "files_last": samples[-1][counted].get(name, 0)}
    return found


def slope(xs: list[float], ys: list[float]) -> float:
    """By least squares; 0 if there is no width."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    width = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys)) / width if width else 0.0
