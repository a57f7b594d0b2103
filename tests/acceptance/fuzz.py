"""Millions of mutated messages against the real controller, in one process. Exits 1 on a stray exception.

python -m tests.acceptance.fuzz --number 10000000 --seed 1
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from pathlib import Path

from tests.roles.fuzz import Fuzzer

CHUNK = 100_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    os.fsync = lambda _: None  # type: ignore[assignment]
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rollart-fuzz-", dir="/dev/shm") as directory:
        fuzzer = Fuzzer(Path(directory), options.seed)
        while fuzzer.findings.sent < options.number:
            found = fuzzer.run(min(CHUNK, options.number - fuzzer.findings.sent))
            rate = found.sent / (time.monotonic() - began_s)
            print(
                f"{found.sent} messages, {found.decoded / found.sent:.1%} decoded and permitted, "
                f"{found.reached / found.sent:.1%} reached the core, {found.worlds} worlds, "
                f"{sum(found.stray.values())} stray exceptions, {rate:.0f} messages/s",
                flush=True,
            )
        fuzzer.close()
    print(f"refused: {dict(found.refused)}\nworlds ended by: {dict(found.ended)}\nsteps trained: {found.steps}")
    for what, count in found.stray.most_common():
        print(f"stray x{count}: {what}")
    return 1 if found.stray else 0


if __name__ == "__main__":
    raise SystemExit(main())
