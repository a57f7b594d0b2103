"""The same exchange through Ray and through our controller, side by side. Ray gets an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import venv
from pathlib import Path
from typing import Any

from tests.acceptance.drive import RESULTS, rollart, table, write_page

RAY = "ray==2.60.0"
ACTORS, SLOTS = 16, 1000
EXCHANGE = Path(__file__).with_name("ray_exchange.py")

Figures = dict[str, Any]


def against_ray(keep: Path) -> bool:
    """Both in one run, one after the other."""
    python = _ray_environment(keep / "ray-environment")
    command = [str(python), str(EXCHANGE), str(ACTORS), str(SLOTS)]
    with tempfile.TemporaryDirectory(prefix="ray-") as home:  # a short path: its sockets lie there, and its token
        private = {**os.environ, "HOME": home, "RAY_TMPDIR": home}
        done = subprocess.run(command, env=private, check=True, text=True, stdout=subprocess.PIPE)
    theirs = json.loads(done.stdout.splitlines()[-1])  # Ray prints warnings of its own before
    size = ["--engines", str(ACTORS), "--slots", str(SLOTS), "--seconds", str(theirs["seconds"])]
    ours = json.loads(rollart("bench", "hub", "--json", *size))
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "ray.json").write_text(json.dumps({"rollart-hpc": ours, "ray": theirs}, indent=1) + "\n")
    write_page("ray", page(ours["rows"][0], ours["payload"], theirs))
    return bool(ours["rows"][0]["turns_per_s"] >= theirs["turns_per_s"])


def _ray_environment(directory: Path) -> Path:
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", RAY], check=True)
    return python


def page(ours: Figures, payload: str, theirs: Figures) -> list[str]:
    def cells(who: str, row: Figures, crosses: str, encrypted: str) -> list[str]:
        figures = [f"{row['turns_per_s']:,.0f}", f"{row['cpu_us_per_turn']:.0f}", f"{row['p99_ms']:.1f}"]
        return [who, *figures, crosses, encrypted]

    head = ["", "turns/s", "CPU us per turn", "p99 ms at half load", "a turn crosses", "encrypted"]
    hops = "env worker, controller, engine, controller, env worker", "driver, actor, driver"
    return [
        "# The same exchange through Ray",
        "",
        f"{ACTORS} engines or actors with {SLOTS:,} turns in flight, {ours['saturated']['seconds']:.0f} s each, one",
        "after the other on the same 2 CPU cores. CPU is that of all threads of the controller or of Ray's driver",
        "while all turns are in flight. `ray.json` has the raw figures. Measured by:",
        "",
        "```",
        "make acceptance-ray",
        "```",
        "",
        *table(
            head,
            [
                cells("rollart-hpc", ours, hops[0], "everything (CURVE)"),
                cells(f"Ray {theirs['version']}", theirs, hops[1], "nothing (its default: a token, no TLS)"),
            ],
        ),
        "",
        "Prompts and answers have the same size. Other work differs:",
        "",
        f"- rollart-hpc: {payload} Meanwhile groups are scored and trained and weights installed.",
        "- Ray: a driver calls `actor.generate.remote(prompt)` and collects answers with `ray.wait` and `ray.get`, a",
        f"  tenth of the turns in flight at a time. {theirs['payload']} No environments, rewards, trainer or weights.",
        "- Each of Ray's actors is a process that shares the two cores with the driver. Our engines are sockets of one",
        "  process. Compare the CPU per turn, which excludes both, rather than turns per second.",
    ]
