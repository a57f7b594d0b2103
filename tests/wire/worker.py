"""A worker process for tests: joins, then does what it is told. argv: directory of keys, address, name, deed."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

from rollart_hpc.wire.keys import load_client
from rollart_hpc.wire.link import Link
from tests.wire.star import PATIENCE_S, SHORT_SILENCE_S, ask, make_hello

BUSY_S = 2 * SHORT_SILENCE_S


def main() -> None:
    directory, address, name, deed = sys.argv[1:]
    link = Link(address, load_client(Path(directory), "env"), make_hello(name))
    if deed == "raise":
        raise RuntimeError("a role that dies without closing its link")
    end_s = time.monotonic() + BUSY_S
    while time.monotonic() < end_s:
        if deed == "sleep":
            time.sleep(BUSY_S)
        elif deed == "hash":
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 500_000)
        elif deed == "loop":
            sum(range(100_000))
        elif deed == "wait":
            link.recv(1.0)
    link.send(ask(f"{name} is back"))
    link.recv(PATIENCE_S)
    link.close("finished")


if __name__ == "__main__":
    main()
