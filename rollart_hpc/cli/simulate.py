"""`simulate`: what a run would do at a site, in virtual time. Starts nothing."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollart_hpc.cli.plan import load_for_site
from rollart_hpc.config.check import nearest
from rollart_hpc.config.load import Loaded
from rollart_hpc.config.modes import Mode
from rollart_hpc.errors import UserError
from rollart_hpc.files import write_atomic
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.observe.report import write_report
from rollart_hpc.simulate.build import Case, build, shape_for
from rollart_hpc.simulate.cluster import Cluster
from rollart_hpc.simulate.figures import Compared, compare
from rollart_hpc.simulate.notes import assume, told
from rollart_hpc.simulate.page import comparison_page
from rollart_hpc.simulate.presets import workload_of
from rollart_hpc.simulate.record import Recorder

WARM_UP = 2


def simulate(args: argparse.Namespace) -> int:
    _need_sense(args)
    loaded = load_for_site(args, needs_model=False)
    case = case_of(args, loaded)
    modes = _modes(args.modes) if args.modes else [loaded.config.mode]
    found = compare(
        case,
        modes,
        range(loaded.config.seed, loaded.config.seed + args.seeds),
        steps=args.steps,
        warm_up=WARM_UP,
        plan_of=lambda each: make_plan(each.config, each.site),
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    notes = told(case)
    title = f"{loaded.config.name} on {loaded.site.name}"
    if args.page:
        write_atomic(args.page, comparison_page(title, found, notes))
    if args.keep:
        _keep(case, args.keep, args.steps)
    if args.json:
        print(json.dumps(_data(title, found, notes), indent=1))
    else:
        print("\n".join([f"{title}, simulated", "", *lines(found), "", *(f"assumed: {note}" for note in notes)]))
    return 0


def case_of(args: argparse.Namespace, loaded: Loaded) -> Case:
    config = loaded.config
    workload = workload_of(args.workload, config)
    workload = replace(workload, machines=assume(workload.machines, args.assume))
    return Case(config, loaded.site, workload, shape_for(config, args.model))


def _need_sense(args: argparse.Namespace) -> None:
    if args.keep and args.keep.exists():
        raise UserError(f"--keep {args.keep}: already exists", "choose another directory")
    for name in ("steps", "seeds"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: nothing would be simulated", "use 1 or more")


def _modes(names: list[str]) -> list[str]:
    known = [str(mode) for mode in Mode]
    if names == ["all"]:
        return known
    for name in names:
        if name not in known:
            raise UserError(f"--modes {name}: there is no such mode", f"{nearest(name, known)}, or use all")
    return names


def _keep(case: Case, path: Path, steps: int) -> None:
    """A run directory of one simulation from its first step on, for `report`."""
    recorder = Recorder(path, case.config)
    cluster = Cluster(build(case, steps=steps), observer=recorder.span)
    cluster.run(steps)
    recorder.finish(cluster)
    write_report(path)


def lines(found: list[Compared]) -> list[str]:
    heads = f"{'mode':<11}{'s per step':>18}{'gain':>8}{'tok/s':>10}{'trainer':>9}{'stale':>7}{'GPU-h':>8}{'cost':>8}"
    rows = [f"{heads}  bound by"]
    first = found[0].mean("step_s")
    for each in found:
        step_s = each.mean("step_s")
        rows.append(
            f"{each.mode:<11}{step_s:>11.1f} ± {each.spread('step_s'):>4.0%}{first / step_s:>7.2f}x"
            f"{each.mean('tokens_per_s'):>10.0f}{each.mean('train_s') / step_s:>9.0%}{each.mean('staleness'):>7.2f}"
            f"{each.mean('gpu_hours_per_step'):>8.2f}{each.mean('cost_per_step'):>8.2f}  {each.outcomes[0].bound}"
        )
    rows += ["", f"{'pool':<26}{'prefill':>9}{'decode':>9}{'install':>9}{'idle':>9}"]
    for each in found:
        for pool in each.outcomes[0].pools:
            shares = "".join(f"{each.share(pool, key):>9.0%}" for key in ("prefill", "decode", "install", "idle"))
            rows.append(f"{f'{each.mode}, {pool}':<26}{shares}")
    return rows


def _data(title: str, found: list[Compared], notes: list[str]) -> dict[str, Any]:
    modes = {
        each.mode: {
            "step_s": each.mean("step_s"),
            "spread": each.spread("step_s"),
            "seeds": [outcome.as_dict() for outcome in each.outcomes],
        }
        for each in found
    }
    return {"simulated": title, "modes": modes, "assumed": notes}
