"""`python -m rollart_hpc.bench.load PLAN`: a `LoadPlan` as JSON comes in, a `LoadFigures` as JSON goes out."""

from __future__ import annotations

import gc
import sys

import msgspec

from rollart_hpc.bench.load.driver import LoadPlan, run
from rollart_hpc.errors import SiteError


def main(plan: str) -> int:
    gc.disable()  # nothing here is part of a cycle, and a pause of the load would count as one of the controller
    try:
        told = run(msgspec.json.decode(plan, type=LoadPlan))
    except SiteError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(msgspec.json.encode(told).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
