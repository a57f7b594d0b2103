"""Puts fixed defects back, one at a time, and counts the seeds until the runs under faults notice.

Each defect is a replacement in a copy of the package, driven in a process of its own. A defect whose text is no longer
there is an error: keep this list in step with the code.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.acceptance.drive import ROOT
from tests.acceptance.reliability import store, stored

WITHIN = {"core": 6000, "controller": 3000, "fuzz": 60_000}  # seeds; mutated messages
FUZZ_STEP = 1000


class Mutant(NamedTuple):
    defect: str
    world: str  # core, controller or fuzz
    file: str
    old: str
    new: str


CHECKS, CORE = "roles/checks.py", "flow/core.py"
MUTANTS = (
    Mutant("no deadlines: a hung worker is never set aside", "core", CORE,
           "            if look.reason:\n", "            if False:\n"),
    Mutant("a late duplicate of Published takes engines back", "core", CORE,
           "(newest is None or event.weights >= newest)", "True"),
    Mutant("one bad env worker quarantines tasks", "core", CORE,
           "self.watch.has_others(worker.role) and self.streaks", "False and self.streaks"),
    Mutant("the first env worker after a start is a witness", "core", "flow/watch.py",
           "(expected > 1 and self._now < since_s + OTHERS_S)", "False"),
    Mutant("after a jump of the clock the only env worker is a witness", "core", "flow/watch.py",
           "max(self._alone_s.get(role, 0.0), self._seeing_s)", "self._alone_s.get(role, 0.0)"),
    Mutant("one failed save ends the run", "core", CORE,
           "if self.failed_saves >= self.rules.save_tries:", "if True:"),
    Mutant("a step that always raises is not quarantined", "core", CORE,
           "if count < limit or self.tally.tasks[task].quarantined:",
           "if kind is Kind.STEP or count < limit or self.tally.tasks[task].quarantined:"),
    Mutant("redundant groups that are stale from the start", "core", "flow/admission.py",
           "version >= self.batches.next_step - self.rules.alpha", "True"),
    Mutant("a trajectory is as old as its first token", "controller", "flow/trajectories.py",
           "trajectory.first_version < 0 or event.first_version < trajectory.first_version",
           "trajectory.first_version < 0"),
    Mutant("tokens older than any answer", "controller", CHECKS,
           "if sampled.size and sampled.min() < trajectory.first_version:", "if False:"),
    Mutant("a turn with a torn frame", "controller", CHECKS,
           "if len(frames) != 1 or len(frames[0]) & 3:", "if False:"),
    Mutant("a prefix that is always missing", "controller", CHECKS,
           "if not m.full and self._payloads.asked_again.get(m.trajectory) == (m.issue, m.turn):", "if False:"),
    Mutant("names of any length", "controller", "wire/messages.py",
           "Name = Annotated[str, Meta(max_length=255)]", "Name = str"),
    Mutant("a trainer joins as an attempt that nobody announced", "controller", CHECKS,
           "if hello.attempt > self.trainer_attempt:", "if False:"),
    Mutant("a step that was not sent is committed", "controller", CHECKS,
           "if m.version != core.version + 1 or m.step != core.version or not core.batches.is_closed:", "if False:"),
    Mutant("an answer may name another trajectory", "controller", CHECKS,
           "        if trajectory.id != m.trajectory:\n            raise Malformed(f\"request {m.request} is about "
           "{trajectory.id}, not {m.trajectory}\")\n        if len(frames)", "        if len(frames)"),
    Mutant("an end without frames", "controller", CHECKS, "if len(frames) != 4:", "if False:"),
    Mutant("an end with wrong lengths", "controller", CHECKS,
           "if not lengths or min(lengths) < 1 or 4 * sum(lengths) != size:", "if False:"),
    Mutant("tokens of versions that do not exist", "controller", CHECKS,
           "if not 0 <= first <= newest or not 0 <= last <= newest:", "if False:"),
    Mutant("rewards that are not finite", "controller", CHECKS, "if not math.isfinite(m.reward):", "if False:"),
    Mutant("a trainer joins at any version", "controller", CHECKS,
           "if hello.capacity and not 0 <= hello.version <= self._core.version:", "if False:"),
    Mutant("any key may play any role", "controller", "wire/hub.py", "            if type(message) in known[1]:\n",
           "            if True:\n"),
    Mutant("a damaged checkpoint is never skipped", "controller", "roles/checkpoints.py",
           "        except DamagedError as error:\n", "        except ZeroDivisionError as error:\n"),
    Mutant("payloads of trajectories that are gone are kept", "controller", "roles/payloads.py",
           "for store in (self.turns, self.answers, self.ended, self.asked_again):", "for store in ():"),
    Mutant("times without a bound", "fuzz", "wire/messages.py", "Seconds = Finite\n", "Seconds = float\n"),
    Mutant("a number of ranks without a bound", "fuzz", "wire/messages.py",
           "Ranks = Annotated[int, Meta(ge=1, le=1 << 16)]", "Ranks = int"),
)  # fmt: skip


def mutants() -> bool:
    found = []
    for mutant in MUTANTS:
        number = until_caught(mutant)
        print(f"{mutant.defect}: {number or 'never'}", flush=True)
        found.append({"defect": mutant.defect, "world": mutant.world, "seeds": number, "within": WITHIN[mutant.world]})
        store("faults", {**(stored("faults") or {}), "mutants": found})
    return all(row["seeds"] for row in found)


def until_caught(mutant: Mutant) -> int | None:
    with tempfile.TemporaryDirectory(prefix="rollart-mutant-", dir="/dev/shm") as directory:
        package = Path(directory) / "rollart_hpc"
        shutil.copytree(ROOT / "rollart_hpc", package, ignore=shutil.ignore_patterns("__pycache__"))
        path = package / mutant.file
        text = path.read_text()
        assert text.count(mutant.old) == 1, f"{mutant.defect}: {text.count(mutant.old)} places in {mutant.file}"
        path.write_text(text.replace(mutant.old, mutant.new))
        command = [sys.executable, str(Path(__file__)), "--drive", mutant.world, "--directory", directory]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([directory, str(ROOT)])}
        done = subprocess.run(command, env=variables, text=True, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"  {found['error']}", flush=True)
    return found["number"]


# --- in the process with the defect --------------------------------------------------------------


def drive(world: str, directory: Path) -> dict[str, Any]:
    import rollart_hpc
    from tests.faults import faulty, spoiling
    from tests.roles.fuzz import Fuzzer

    assert Path(rollart_hpc.__file__).is_relative_to(directory), "not the copy"
    logging.disable(logging.CRITICAL)
    os.fsync = lambda _: None  # type: ignore[assignment]
    fuzzer = Fuzzer(directory / "fuzz", 1) if world == "fuzz" else None
    number = 0
    while number < WITHIN[world]:
        number += FUZZ_STEP if fuzzer else 1
        try:
            if fuzzer:
                stray = fuzzer.run(FUZZ_STEP).stray
                assert not stray, next(iter(stray))
            elif world == "core":
                faulty.play(number)
            else:
                spoiling.controlled(directory / "run", number)
        except Exception as error:
            return {"number": number, "error": f"{type(error).__name__}: {error}"[:160]}
    return {"number": None, "error": "not noticed"}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--drive", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args()
    print(json.dumps(drive(options.drive, options.directory)))
