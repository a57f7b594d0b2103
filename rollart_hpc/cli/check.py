"""`check`: report every problem of a run before it starts."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from rollart_hpc.cli.plan import tell_loaded
from rollart_hpc.config.key_names import as_keys
from rollart_hpc.config.load import load_all
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError, UserError
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.task_summary import task_data, task_lines


def check(args: argparse.Namespace) -> int:
    try:
        loaded = load_all(args.run, args.overrides, args.site)
    except UserError as error:
        if not args.json:
            raise
        problems = error.problems if isinstance(error, ConfigError) else [str(error)]
        print(json.dumps({"good": False, "problems": problems, "warnings": []}, indent=1))
        return error.exit_code
    plan = make_plan(loaded.config, loaded.site)
    if args.json:
        procs = [asdict(proc) for proc in plan.procs]
        found = {"good": True, "problems": [], "warnings": loaded.warnings, "notes": loaded.notes}
        found["tasks"] = task_data(loaded.config)
        print(json.dumps({**found, "config": as_keys(RunConfig, asdict(loaded.config)), "plan": procs}, indent=1))
        return 0
    tell_loaded(loaded)
    print(f"{args.run}: no problems, {len(plan.procs)} processes")
    for node in dict.fromkeys(proc.node for proc in plan.procs):
        print(f"  {node}: {', '.join(proc.name for proc in plan.procs if proc.node == node)}")
    print("\n".join(task_lines(loaded.config)))
    return 0
