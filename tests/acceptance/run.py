"""Long trainings whose figures go into docs/results. Run by `make acceptance`; each part can be run alone:

python tests/acceptance/run.py quickstart [--seeds 0 1 2 3 4]
python tests/acceptance/run.py modes
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
FIRST_BELOW, LAST_ABOVE, LIMIT_S, BASE_MODEL_LIMIT_S = 0.3, 0.75, 600, 60


def rollart(*arguments: str) -> str:
    """Its standard output; what it says else goes to the terminal."""
    command = [sys.executable, "-m", "rollart_hpc.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, text=True, check=True, stdout=subprocess.PIPE).stdout


def watched(*arguments: str) -> tuple[int, str]:
    """Exit code and whole output of a command whose output is shown as it comes."""
    command = [sys.executable, "-m", "rollart_hpc.cli", *arguments]
    lines: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, "".join(lines)


@dataclass
class Result:
    """One seed of the quickstart."""

    seed: int
    code: int
    seconds: float
    base_model_s: float | None  # None: not told, so not made
    status: dict[str, Any]  # of a run that finished

    @property
    def passed(self) -> bool:
        return (
            self.code == 0
            and self.seconds <= LIMIT_S
            and self.base_model_s is not None
            and self.base_model_s <= BASE_MODEL_LIMIT_S
            and all(
                task["score_first"] < FIRST_BELOW and task["score_last"] > LAST_ABOVE
                for task in self.status["tasks"].values()
            )
        )

    def row(self, tasks: list[str]) -> list[str]:
        base_model = "-" if self.base_model_s is None else f"{self.base_model_s:g} s"
        times = [base_model, f"{self.seconds:.0f} s"]
        if self.code:
            return [str(self.seed), *["-"] * 2 * len(tasks), *times, "-", f"failed (exit code {self.code})"]
        scores = [f"{self.status['tasks'][name][key]:.2f}" for name in tasks for key in ("score_first", "score_last")]
        staleness = str(self.status["staleness"]["max_trained"])
        return [str(self.seed), *scores, *times, staleness, "yes" if self.passed else "no"]


def run_seed(seed: int, run_dir: Path) -> Result:
    began = time.monotonic()
    code, output = watched("run", "quickstart", f"seed={seed}", "--run-dir", str(run_dir))
    seconds = time.monotonic() - began
    told = re.search(r"base model made in (\d+(?:\.\d+)?) s", output)
    status = {} if code else json.loads(rollart("status", str(run_dir), "--json"))
    return Result(seed, code, seconds, float(told[1]) if told else None, status)


def quickstart(seeds: list[int], keep: Path | None) -> bool:
    results: list[Result] = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as scratch:
            results.append(run_seed(seed, (keep or Path(scratch)) / f"seed-{seed}"))
        write_quickstart(results)
    passed = sum(result.passed for result in results)
    print(f"{passed} of {len(seeds)} seeds passed")
    return passed >= min(len(seeds), 4)


def write_quickstart(results: list[Result]) -> None:
    tasks = next((list(result.status["tasks"]) for result in results if result.status), [])
    scores = [f"{task} {when}" for task in tasks for when in ("first", "last")]
    head = ["seed", *scores, "base model", "whole run", "max staleness", "passed"]
    lines = [
        "# Quickstart over seeds",
        "",
        "Success on 128 validation plays per task on held-out seeds before the first and after the last step, greedy.",
        f"A seed passes if every task rises from below {FIRST_BELOW} to above {LAST_ABOVE}, the base model is made",
        f"within {BASE_MODEL_LIMIT_S} s, and the run, base model and validations included, ends within {LIMIT_S} s.",
        "Measured on 2 shared CPU cores by:",
        "",
        "```",
        "python tests/acceptance/run.py quickstart",
        "```",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(result.row(tasks)) + " |" for result in results),
        "",
        "On FrozenLake a held-out seed is not always an unseen map: there are few 4x4 maps, and most of those for",
        "validation occur in training too. The questions of `sorting` are drawn from 151,200: nearly all are new.",
        "",
    ]
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "quickstart.md").write_text("\n".join(lines))


def modes(keep: Path | None) -> bool:
    text = rollart("bench", "modes", "--json")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "modes.json").write_text(text)
    rows, mean_s = json.loads(text)["rows"], json.loads(text)["mean_s"]
    names = list(rows[0]["speedup_over_sync"])
    lines = [
        "# The five modes under injected environment latency",
        "",
        f"Speed-up over `sync` in time per step, turn latency N({mean_s:g} s, std). Real runs of",
        "the same code, interleaved, on 2 shared CPU cores. The last column is `sync_plus` over `sync`:",
        "trajectory-level against batched environments. Printed by `rollart-hpc bench modes`; raw figures in",
        "`modes.json`.",
        "",
        "| std | " + " | ".join(names) + " | trajectory / batched |",
        "|" + "---|" * (len(names) + 2),
    ]
    for row in rows:
        gains = " | ".join(f"{row['speedup_over_sync'][name]:.2f}x" for name in names)
        lines.append(f"| {row['std_s']:g} s | {gains} | {row['trajectory_over_batched']:.2f}x |")
    (RESULTS / "modes.md").write_text("\n".join([*lines, ""]))
    gains = [row["trajectory_over_batched"] for row in rows]
    return gains[-1] > gains[0] > 1.0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=("all", "quickstart", "modes"), default="all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--keep", type=Path, help="keep the run directories here")
    args = parser.parse_args()
    results = []
    if args.part in ("all", "quickstart"):
        results.append(quickstart(args.seeds, args.keep))
    if args.part in ("all", "modes"):
        results.append(modes(args.keep))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
