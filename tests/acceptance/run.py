"""Long trainings whose figures go into docs/results. Run by `make acceptance`; each part can be run alone:

python tests/acceptance/run.py quickstart [--seeds 0 1 2 3 4]
python tests/acceptance/run.py modes
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
FIRST_BELOW, LAST_ABOVE, LIMIT_S = 0.3, 0.75, 600


def rollart(*arguments: str, capture: bool = False) -> str:
    command = [sys.executable, "-m", "rollart_hpc.cli", *arguments]
    done = subprocess.run(command, cwd=ROOT, text=True, check=True, stdout=subprocess.PIPE if capture else None)
    return done.stdout or ""


def quickstart(seeds: list[int], keep: Path | None) -> bool:
    rows, passed = [], 0
    for seed in seeds:
        with tempfile.TemporaryDirectory() as scratch:
            run_dir = (keep or Path(scratch)) / f"seed-{seed}"
            began = time.monotonic()
            rollart("run", "quickstart", f"seed={seed}", "--run-dir", str(run_dir))
            seconds = time.monotonic() - began
            status = json.loads(rollart("status", str(run_dir), "--json", capture=True))
        tasks = status["tasks"]
        good = seconds <= LIMIT_S and all(
            t["score_first"] < FIRST_BELOW and t["score_last"] > LAST_ABOVE for t in tasks.values()
        )
        passed += good
        scores = [f"{t[key]:.2f}" for t in tasks.values() for key in ("score_first", "score_last")]
        staleness = str(status["staleness"]["max_trained"])
        rows.append([str(seed), *scores, f"{seconds:.0f} s", staleness, "yes" if good else "no"])
        write_quickstart(list(tasks), rows)
    print(f"{passed} of {len(seeds)} seeds passed")
    return passed >= min(len(seeds), 4)


def write_quickstart(tasks: list[str], rows: list[list[str]]) -> None:
    scores = [f"{task} {when}" for task in tasks for when in ("first", "last")]
    head = ["seed", *scores, "whole run", "max staleness", "passed"]
    lines = [
        "# Quickstart over seeds",
        "",
        "Success on 128 validation plays per task on held-out seeds before the first and after the last step, greedy.",
        f"A seed passes if every task rises from below {FIRST_BELOW} to above {LAST_ABOVE} and the run, base model and",
        f"validations included, ends within {LIMIT_S} s. Measured on 2 shared CPU cores by:",
        "",
        "```",
        "python tests/acceptance/run.py quickstart",
        "```",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "quickstart.md").write_text("\n".join(lines))


def modes(keep: Path | None) -> bool:
    text = rollart("bench", "modes", "--json", capture=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "modes.json").write_text(text)
    rows, mean_s = json.loads(text)["rows"], json.loads(text)["mean_s"]
    names = list(rows[0]["speedup_over_sync"])
    lines = [
        "# The five modes under injected environment latency",
        "",
        f"Speed-up over `sync` in time per step, turn latency N({mean_s:g} s, std). Real runs of",
        "the same code, interleaved, on 2 shared CPU cores. The last column is `sync_plus` over `sync`: trajectory-level",
        "against batched environments. Printed by `rollart-hpc bench modes`; raw figures in `modes.json`.",
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
