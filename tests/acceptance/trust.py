"""What it costs to check every message: the controller as it is, beside a copy that takes all of them on trust.

Pairs of `bench hub` runs, one after the other, so that both see the same machine.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.acceptance.mutants import copied
from tests.acceptance.reliability import store

ENGINES, SLOTS, SECONDS = 100, 10_000, 8
MOST = 0.05  # of the turns per second
BOUND = re.compile(r"^(\w+) = Annotated\[(.+), Meta\(.*\)\]$", re.MULTILINE)
WAITED_FOR = """is_expected = (
                self.core.has_request(message.request) if type(message) is ms.Generated
                else self.core.is_expected(message.trajectory, message.issue)
                if type(message) is ms.TurnWanted or type(message) is ms.Ended else True
            )"""  # without this late answers would replace those that are waited for
TRUSTED = (  # file, what is checked, what is done instead
    ("roles/controller.py", "is_expected = self.checks.check(name, message, frames)", WAITED_FOR),
    ("wire/hub.py", "            if type(message) in known[1]:\n", "            if True:\n"),
    ("wire/parts.py", "        left -= len(frame)\n", ""),
)


def trust(pairs: int = 5) -> bool:
    with copied() as checked, copied() as trusting:
        believe(trusting)
        rows = [(measure(checked), measure(trusting)) for _ in range(pairs)]
    ratios = {
        key: statistics.median(checks[key] / trusts[key] for checks, trusts in rows)
        for key in ("turns_per_s", "cpu_us_per_turn")
    }
    figures = {"engines": ENGINES, "slots": SLOTS, "seconds": SECONDS, "pairs": rows, "ratios": ratios}
    print(json.dumps(figures), flush=True)
    store("trust", figures)
    return ratios["turns_per_s"] >= 1 - MOST


def believe(directory: Path) -> None:
    """No message is checked in this copy, beyond that it decodes."""
    for name, old, new in TRUSTED:
        path = directory / "rollart_hpc" / name
        text = path.read_text()
        assert text.count(old) == 1, f"{text.count(old)} places in {name}"
        path.write_text(text.replace(old, new))
    path = directory / "rollart_hpc" / "wire" / "messages.py"
    text, count = BOUND.subn(r"\1 = \2", path.read_text())
    assert count > 1, "no bounds of types"
    path.write_text(text)


def measure(directory: Path) -> dict[str, float]:
    sizes = ("--engines", str(ENGINES), "--slots", str(SLOTS), "--seconds", str(SECONDS))
    command = [sys.executable, "-m", "rollart_hpc.cli", "bench", "hub", *sizes, "--json"]
    done = subprocess.run(command, cwd=directory, text=True, check=True, stdout=subprocess.PIPE)
    (row,) = json.loads(done.stdout)["rows"]
    found: dict[str, Any] = {key: round(row[key], 1) for key in ("turns_per_s", "cpu_us_per_turn")}
    print(found, flush=True)
    return found
