"""Many trainings by `loop`, one at a time, each in a process of its own. Owns their list of results.

Every finished training is written to docs/results/NAME.json at once; one that stands there is not run again. So a study
can be stopped and continued, also by another session.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance.drive import RESULTS, ROOT

GOAL, EVERY, PLAYS = 0.9, 10, 64
RUN = "quickstart"


@dataclass(frozen=True)
class Case:
    """One training. `name` tells it from the others of its study."""

    name: str
    seed: int
    lag: int = 0
    overrides: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        return f"{self.name} seed={self.seed}"


Found = dict[str, dict[str, Any]]  # by key


def stored(study: str) -> Found:
    path = RESULTS / f"{study}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def run_all(study: str, cases: Iterable[Case], model: Path, limit_s: float) -> Found:
    """Run what is not stored yet; no training begins after `limit_s`."""
    found, began_s = stored(study), time.monotonic()
    for case in cases:
        if case.key in found or time.monotonic() - began_s > limit_s:
            continue
        found[case.key] = _run(case, model)
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{study}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(f"{case.key}: {found[case.key]['reached']}", flush=True)
    return found


def _run(case: Case, model: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.acceptance.studies", str(model), json.dumps(asdict(case))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, check=True, stdout=subprocess.PIPE)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def train(case: Case, model: Path) -> dict[str, Any]:
    """Until every task has reached the goal in one validation, or the run file's steps are over."""
    from rollart_hpc.config.load import load
    from tests.acceptance.loop import Loop, base_model

    config = load(RUN, [f"seed={case.seed}", *case.overrides])
    loop = Loop(config, base_model(model, config), lag=case.lag)
    scores: list[dict[str, float]] = []
    steps: list[dict[str, float]] = []
    reached: int | None = None
    while len(steps) < config.steps and reached is None:
        steps.append(loop.step())
        if len(steps) % EVERY == 0:
            scores.append(loop.validate(PLAYS))
            reached = len(steps) if min(scores[-1].values()) >= GOAL else None
    past = steps[case.lag :]  # before, no version was old enough
    means = {name: sum(s.get(name, 0.0) for s in past) / len(past) for name in _TOLD}
    seconds = sum(s["seconds"] for s in steps)
    return {**asdict(case), "reached": reached, "steps": len(steps), "seconds": seconds, "scores": scores, **means}


_TOLD = (
    "age",
    "kl_behaviour",
    "effective_samples",
    "correction_masked",
    "clip_fraction",
    "grad_norm",
    "update_skipped",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("case", type=json.loads)
    args = parser.parse_args()
    print(json.dumps(train(Case(**args.case), args.model)))


if __name__ == "__main__":
    main()
