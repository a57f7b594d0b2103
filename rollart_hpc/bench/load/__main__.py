"""`python -m rollart_hpc.bench.load PLAN`: takes a `LoadPlan` as JSON and prints `LoadFigures` as JSON."""

from __future__ import annotations

import gc
import sys

import msgspec

from rollart_hpc.bench.load.driver import LoadPlan, run
from rollart_hpc.errors import SiteError


def main(plan: str) -> int:
    gc.disable()  # the load makes no reference cycles, and its pauses would look like pauses of the controller
    try:
        told = run(msgspec.json.decode(plan, type=LoadPlan))
    except SiteError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(msgspec.json.encode(told).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
