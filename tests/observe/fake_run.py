"""A run directory as a run of 40 steps leaves it, made up: for the report's tests, and to look at the report.

python tests/observe/fake_run.py DIRECTORY
"""

from __future__ import annotations

import json
import math
import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from rollart_hpc.observe.metrics import MetricsLog
from rollart_hpc.observe.trace import Tracer

TASKS = ("frozenlake", "countdown")


def write_fake_run(run_dir: Path, steps: int = 40) -> None:
    rng = random.Random(1)
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.yaml").write_text(f"name: quickstart\nmode: rollart\nsteps: {steps}\n<script>: 'not run'\n")
    times = _write_metrics(MetricsLog(run_dir / "metrics.jsonl"), steps, rng)
    _write_traces(run_dir / "attempts" / "attempt_1" / "trace", times, rng)
    (run_dir / "status.json").write_text(json.dumps(_status(steps, times[-1])))


def _success(task: str, step: float, rng: random.Random) -> float:
    middle, slope = (14, 4) if task == "frozenlake" else (9, 3)
    return min(1.0, max(0.0, 0.08 + 0.82 / (1 + math.exp((middle - step) / slope)) + rng.gauss(0, 0.03)))


def _write_metrics(log: MetricsLog, steps: int, rng: random.Random) -> list[float]:
    times = [4.0]
    log.event("worker_joined", time_s=0.4, name="engine-compute-0", detail="engine on node-0, pid 4711")
    log.event("running", time_s=3.0, name="run", detail="the first engine has weights")
    for step in range(steps):
        if step % 8 == 0:
            _validate(log, step, times[-1], rng)
        wait_s, train_s = rng.uniform(1.0, 4.0) * (1.6 if step < 4 else 1), rng.uniform(1.8, 2.4)
        step_s = wait_s + train_s + (1.5 if step % 8 == 0 else 0.1)
        times.append(times[-1] + step_s)
        log.step(_step(step, times[-1], (wait_s, train_s, step_s), rng))
        if step == steps * 5 // 8:
            log.event("worker_lost", time_s=times[-1] - 0.2, name="engine-compute-0", detail="exited with code -9")
            log.event("worker_joined", time_s=times[-1] + 0.9, name="engine-compute-0", detail="engine, pid 4799")
    _validate(log, steps, times[-1], rng)
    log.event("finished", time_s=times[-1] + 1.5, name="run", detail=f"all {steps} steps committed")
    log.close()
    return times


def _validate(log: MetricsLog, version: int, time_s: float, rng: random.Random) -> None:
    for task in TASKS:
        success = _success(task, version, rng)
        log.validation({"version": version, "time_s": time_s, "task": task, "plays": 128, "success": success,
                        "reward": success, "versions": [version, version], "each": _each(success)})  # fmt: skip


def _each(success: float) -> dict[str, list[float]]:
    hits = [index < 128 * success for index in range(128)]
    return {"seed": [2 * i + 1 for i in range(128)], "reward": [float(hit) for hit in hits], "success": hits}


def _step(step: int, time_s: float, seconds: tuple[float, float, float], rng: random.Random) -> dict[str, Any]:
    rewards = {task: _success(task, step, rng) * 0.9 for task in TASKS}
    wait_s, train_s, step_s = seconds
    metrics = {"loss": rng.gauss(0, 0.02), "grad_norm": 1.2 + rng.random() * math.exp(-step / 20), "lr": 1e-3,
               "entropy": 1.6 * math.exp(-step / 30) + 0.2, "clip_fraction": rng.random() * 0.06,
               "logprob_gap": 2e-6 * rng.random(), "kl": 0.001 * step, "tokens_per_s_rank": 4000.0, "mfu": 0.41,
               "memory_peak_gb": 61.5}  # fmt: skip
    return {"step": step, "version": step + 1, "attempt": 1, "time_s": time_s, "step_s": step_s, "wait_s": wait_s,
            "train_s": train_s, "tokens": 21000, "tokens_per_s": 21000 / step_s, "staleness": {"0": 90, "1": 38},
            "reward": rewards, "success": rewards, "metrics": metrics,
            "kv_used": {"compute": 0.1 + step / 100}}  # fmt: skip


def _write_traces(directory: Path, times: list[float], rng: random.Random) -> None:
    end_s = times[-1]
    with Tracer(directory / "controller.jsonl", "controller") as tracer:
        for step, (start, end) in enumerate(pairwise(times)):
            tracer.span("step", start, end, step=step)
    with Tracer(directory / "trainer-0.jsonl", "trainer-0") as tracer:
        for start, end in pairwise(times):
            split = start + (end - start) * 0.55
            tracer.span("wait", start, split)
            tracer.span("train", split, end - 0.15)
            tracer.span("weights.publish", end - 0.15, end)
    for name in ("engine-compute-0", "engine-bandwidth-0"):
        _engine(directory, name, times, rng)
    with Tracer(directory / "relay-node-0.jsonl", "relay-node-0") as tracer:
        for at in times[1:]:
            tracer.span("weights.adopt", at, at + 0.05, version=1)
    for worker in range(2):
        _environments(directory, f"env-{worker}", end_s, rng)
    with Tracer(directory / "reward-0.jsonl", "reward-0") as tracer:
        at = 4.0
        while at < end_s:
            tracer.span("reward", at, at + 0.01)
            at += rng.expovariate(3)


def _engine(directory: Path, name: str, times: list[float], rng: random.Random) -> None:
    heavy = 0.6 if "compute" in name else 0.15
    with Tracer(directory / f"{name}.jsonl", name) as tracer:
        tracer.set_offset(0.0)
        at = 3.0
        while at < times[-1]:
            if "compute" in name and times[26 * len(times) // 41] < at < times[26 * len(times) // 41] + 2:
                at += 2.0  # it was killed here
            kind = "prefill" if rng.random() < heavy else "decode"
            kind = "wait" if rng.random() < 0.12 else kind
            length = rng.uniform(0.02, 0.12)
            tracer.span(kind, at, at + length, tokens=rng.randrange(8, 400))
            at += length + 0.002
        for end in times[1:]:
            tracer.span("weights.install", end + 0.06, end + 0.09, version=1)


def _environments(directory: Path, name: str, end_s: float, rng: random.Random) -> None:
    with Tracer(directory / f"{name}.jsonl", name) as tracer:
        for _ in range(16):
            at = 3.5 + rng.random()
            while at < end_s:
                length = rng.expovariate(8)
                tracer.span("environment", at, at + length, task=rng.choice(TASKS))
                at += length + rng.expovariate(3)


def _status(steps: int, time_s: float) -> dict[str, Any]:
    def task(pool: str, prefill: int, decode: int, last: float) -> dict[str, Any]:
        other = "bandwidth" if pool == "compute" else "compute"
        return {"score_first": 0.094, "score_last": last, "trajectories": 4120, "groups_trained": 320, "reward": 0.5,
                "success": 0.6, "pool_share": {pool: 0.991, other: 0.009}, "turns": 9000, "prefill_tokens": prefill,
                "decode_tokens": decode, "quarantined": False}  # fmt: skip

    roles = {"engine": (3, 1, 2), "env": (2, 0, 2), "relay": (1, 0, 1), "reward": (1, 0, 1), "trainer": (1, 0, 1)}
    return {
        "name": "quickstart", "state": "finished", "reason": "", "mode": "rollart", "step": steps, "steps": steps,
        "policy_version": steps, "attempt": 1, "time_s": time_s, "tokens_per_s": 5140.0, "playing": 0, "new_key": 1,
        "tasks": {"frozenlake": task("compute", 1_830_000, 240_000, 0.88),
                  "countdown": task("bandwidth", 210_000, 640_000, 0.91)},
        "staleness": {"bound": 1, "max_trained": 1, "histogram": {"0": 3600, "1": 1520}},
        "dropped": {"surplus": 412, "stale": 37, "engine_lost": 9, "env_crashed": 3},
        "fallbacks": 11,
        "workers": {r: {"joined": j, "lost": lost, "alive": a, "left": 0} for r, (j, lost, a) in roles.items()},
        "weights": {"transport": "staged", "transfers": 82, "relay_transfers": 40, "failures": 1, "total_s": 9.1,
                    "exposed_s": 1.32, "bytes": 82 * 1_300_000},
        "wait": {"get_batch_share": 0.43}, "refused": {"bad_key": 1},
    }  # fmt: skip


if __name__ == "__main__":
    from rollart_hpc.observe.report import write_report

    write_fake_run(Path(sys.argv[1]))
    print(write_report(Path(sys.argv[1])))
