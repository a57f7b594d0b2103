"""Puts fixed defects back, one at a time, and counts the seeds until the runs under faults notice.

Each defect is a replacement in a copy of the package, driven in a process of its own: by seeds, by mutated messages, or
by its own test where no world reaches. The tests must pass in a copy without a defect. A defect whose text is no longer
there is an error: keep `defects.py` in step with the code.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance.defects import DRIVEN, FUZZER, TESTED, WITHIN, Mutant
from tests.acceptance.drive import ROOT
from tests.acceptance.reliability import store

FUZZ_STEP = 1000
COPIED = ("rollart_hpc", "tests", "configs", "slurm", "pyproject.toml", "setup.cfg")


def mutants(cores: int = 1) -> bool:
    driven: list[dict[str, Any]] = []
    tested: list[dict[str, Any]] = []
    with ThreadPoolExecutor(cores) as pool:
        rows = pool.map(_put_back, (*DRIVEN, *TESTED))
        for mutant, row in zip((*DRIVEN, *TESTED), rows, strict=True):
            (driven if mutant.by in WITHIN else tested).append(row)
            store("mutants", {"driven": driven, "tested": tested})
    with copied() as directory:
        failed = failing(directory, sorted({mutant.by for mutant in TESTED}))
    print(f"without a defect: {', '.join(failed) or 'all tests pass'}", flush=True)
    return not failed and all(row["seeds"] for row in driven) and all(row["fails"] for row in tested)


def _put_back(mutant: Mutant) -> dict[str, Any]:
    if mutant.by not in WITHIN:
        return _tested(mutant)
    limit = WITHIN[mutant.by]
    return {"defect": mutant.defect, "world": mutant.by, "seeds": until_caught(mutant), "within": limit}


def _tested(mutant: Mutant) -> dict[str, Any]:
    with copied(mutant) as directory:
        fails = failing(directory, [mutant.by])
    print(f"{mutant.defect}: {', '.join(fails) or 'NOT NOTICED'}", flush=True)
    return {"defect": mutant.defect, "test": mutant.by, "fails": fails}


@contextmanager
def copied(mutant: Mutant | None = None) -> Iterator[Path]:
    """A copy of the package and its tests, with this defect."""
    with tempfile.TemporaryDirectory(prefix="rollart-mutant-", dir="/dev/shm") as directory:
        for name in COPIED:
            source, target = ROOT / name, Path(directory) / name
            if source.is_dir():
                shutil.copytree(source, target)  # with what is compiled
            else:
                shutil.copy(source, target)
        if mutant is not None:
            path = Path(directory) / "rollart_hpc" / mutant.file
            text = path.read_text()
            assert text.count(mutant.old) == 1, f"{mutant.defect}: {text.count(mutant.old)} places in {mutant.file}"
            path.write_text(text.replace(mutant.old, mutant.new))
        yield Path(directory)


def until_caught(mutant: Mutant) -> int | None:
    with copied(mutant) as directory:
        command = [sys.executable, "-m", "tests.acceptance.mutants", "--drive", mutant.by, "--directory", "."]
        done = subprocess.run(command, cwd=directory, text=True, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{mutant.defect}: {found['number'] or 'NOT NOTICED'} ({found['error']})", flush=True)
    number: int | None = found["number"]
    return number


def failing(directory: Path, tests: list[str]) -> list[str]:
    """The names of the tests that fail. Raises if the tests could not be run at all."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-rf", "--no-header", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=directory, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout[-2000:])
    lines = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    return [line.partition("::")[2].partition("[")[0] for line in lines]


# --- in the process with the defect --------------------------------------------------------------


def drive(world: str, directory: Path) -> dict[str, Any]:
    import rollart_hpc
    from tests.faults import faulty, spoiling
    from tests.roles.fuzz import Fuzzer

    assert Path(rollart_hpc.__file__).is_relative_to(directory), "not the copy"
    logging.disable(logging.CRITICAL)
    os.fsync = lambda _: None  # type: ignore[assignment]
    gc.freeze()
    fuzzer = Fuzzer(directory / "fuzz", 1) if world == FUZZER else None
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
    print(json.dumps(drive(options.drive, options.directory.resolve())))
