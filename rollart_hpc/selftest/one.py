"""Runs one check in this process: `python -m rollart_hpc.selftest.one NAME SCRATCH GPUS`. Writes SCRATCH/row.json."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path

import msgspec

from rollart_hpc.selftest.checks import Here, Row, State, select


def main() -> int:
    name, scratch, gpus = sys.argv[1:]
    (check,) = select([name])
    module, _, function = check.function.partition(":")
    work = Path(scratch) / "work"
    work.mkdir()
    row = Row(check.name, State.PASSED, check.shows)
    try:
        found = getattr(import_module(f"rollart_hpc.selftest.heavy.{module}"), function)
        row.figures = found(Here(work, check.device, int(gpus)))
    except Exception as error:
        traceback.print_exc()
        row.state = State.FAILED
        row.detail = f"{type(error).__name__}: {str(error).strip() or 'no details'}"[:500]
    (Path(scratch) / "row.json").write_bytes(msgspec.json.encode(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
