"""3,072 and 10,000 GPUs in virtual time, and how fast the simulator is. Writes docs/results/simulated-scale.md."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from typing import Any

from rollart_hpc.estimate.shapes import SHAPES
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.simulate.build import Case
from rollart_hpc.simulate.figures import Outcome, simulate
from tests.acceptance.drive import RESULTS, rollart, table, write_page
from tests.acceptance.paper_testbed import Setting, case_of

STEPS, WARM_UP = 1, 1


@dataclass(frozen=True)
class Size:
    """One GPU in six trains, as in the paper's production; engines of 4 GPUs, two thirds of them H800."""

    gpus: int
    train: int
    h800: int
    h20: int
    groups: int


SIZES = (Size(3072, 512, 1712, 848, 1024), Size(10_000, 1664, 5560, 2776, 3328))


def simulated_scale() -> bool:
    bench = json.loads(rollart("bench", "simulate", "--json"))["rows"]
    rows = [_simulated(size) for size in SIZES]
    content = {"saturated": bench, "clusters": [row | {"size": asdict(row["size"])} for row in rows]}
    (RESULTS / "simulated-scale.json").write_text(json.dumps(content, indent=1) + "\n")
    write_page("simulated-scale", _page(bench, rows))
    return all(row["turns_per_s"] >= 15_000 for row in bench)


def _simulated(size: Size) -> dict[str, Any]:
    case = _case(size)
    began_s = time.process_time()
    plan = make_plan(case.config, case.site)
    planned_s = time.process_time() - began_s
    outcome, cluster = simulate(case, steps=STEPS, warm_up=WARM_UP, seed=0, plan=plan)
    print(f"{size.gpus} GPUs: {outcome.step_s:.0f} s per step, {outcome.cpu_s:.0f} s of CPU", flush=True)
    return {
        "size": size,
        "engines": len(cluster.engines),
        "processes": len(plan.procs),
        "planned_s": planned_s,
        "turns_per_s": outcome.turns / cluster.clock.now,
        **_figures(outcome),
    }


def _figures(outcome: Outcome) -> dict[str, Any]:
    keys = ("step_s", "train_s", "tokens_per_s", "turns", "cpu_s")
    return {key: getattr(outcome, key) for key in keys} | {"bound": outcome.bound}


def _case(size: Size) -> Case:
    setting = Setting(h800=size.h800, h20=size.h20, has_map=True, groups=size.groups, tensor=4)
    case = case_of(setting, "informed")
    case.config.trainer.ranks = size.train
    case.config.env.workers = 2 * size.groups * 8 // 64 + 8
    case.config.reward.workers = size.groups
    return Case(case.config, case.site, case.workload, SHAPES["qwen3-8b"])


def _page(bench: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[str]:
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    saturated = [
        [
            str(row["engines"]),
            f"{row['gpus']:,}",
            f"{row['trajectories']:,}",
            f"{row['turns_per_s']:,.0f}",
            f"{row['events'] / row['cpu_s']:,.0f}",
        ]
        for row in bench
    ]
    clusters = [
        [
            f"{row['size'].gpus:,}",
            str(row["engines"]),
            f"{row['size'].groups * 8:,}",
            f"{row['step_s']:,.0f} s",
            f"{row['tokens_per_s']:,.0f}",
            row["bound"],
            f"{row['turns_per_s']:,.0f}",
            f"{row['cpu_s'] / (STEPS + WARM_UP):,.0f} s",
            f"{row['turns'] / row['cpu_s']:,.0f}",
        ]
        for row in rows
    ]
    return [
        "# Thousands of GPUs, simulated",
        "",
        "The flow core, its router and the trainer's planner are those of a real run; engines, environments and",
        "weights are simulated. **No GPU was used.** One process on one core of a machine with",
        f"{os.cpu_count()} cores and {load:.1f} processes per core at the end; speeds count CPU time. Printed by:",
        "",
        "```",
        "make acceptance-simulated-scale",
        "```",
        "",
        "## Clusters",
        "",
        "Qwen3-8B on engines of 4 GPUs, one GPU in six trains, workload `paper-informed` of `docs/simulate.md`, mode",
        f"`rollart` with whole batches; one step after {WARM_UP} that does not count. *controller* is how many turns a",
        "second it would have to forward.",
        "",
        *table(
            ["GPUs", "engines", "trajectories a step", "time per step", "tokens/s", "bound by", "controller, turns/s",
             "CPU per simulated step", "simulated turns/s"],
            clusters,
        ),
        "",
        "[The controller at any size](hub.md) has what the real controller forwards.",
        "",
        "## Saturated",
        "",
        "Every engine has all its requests, and as many turns wait (`rollart-hpc bench simulate`). The goal is 15,000",
        "turns/s at 100 and at 640 engines.",
        "",
        *table(["engines", "GPUs", "trajectories in progress", "turns/s", "events/s"], saturated),
        "",
        "`simulated-scale.json` has the raw figures.",
    ]  # fmt: skip
