"""What a process asks of the system."""

from __future__ import annotations

import subprocess
import sys

RAISE = """
import resource
from rollart_hpc.processes.lifetime import raise_file_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
limit = raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), limit)
"""


def test_a_process_may_open_as_many_files_as_the_system_allows() -> None:
    told = subprocess.run([sys.executable, "-c", RAISE], capture_output=True, text=True, check=True).stdout
    soft, hard, limit = map(int, told.split())
    assert soft == hard and limit > 64
    assert limit in (hard, sys.maxsize)
