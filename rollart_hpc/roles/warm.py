"""A role started in advance: it imports the slow modules, then reads its arguments from standard input.

    python -m rollart_hpc.roles.warm engine.torch  <  ["--run-dir", "...", "--name", "engine-compute-0", ...]

Started on the nodes of a job while its base model is made. If the input ends without a line, the role is not needed.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

from rollart_hpc.roles.imports import load


def main() -> None:
    kind = sys.argv[1]
    load(kind)
    line = sys.stdin.readline()
    if not line:
        return
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    module = f"rollart_hpc.roles.{kind.partition('.')[0]}"
    sys.argv = [module, *json.loads(line)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
