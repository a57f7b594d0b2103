"""Where tests fork processes with torch from: one server for all files, which imports what they need once.

A process has one such server, and the modules it imports are those that were set last: so they are set here only.
"""

from __future__ import annotations

import multiprocessing

PRELOADED = [
    "tests.trainers.rank",
    "rollart_hpc.trainers.service",
    "rollart_hpc.weights.direct",
    "rollart_hpc.weights.relay",
]

server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(PRELOADED)
