"""What an engine's process promises for those that vLLM starts from it."""

from __future__ import annotations

import os
import select
import subprocess
import sys

LIMIT_S = 120
# As multiprocessing sees it when the engine runs by `python -m`, and as vLLM starts its processes.
ENGINE = """
import importlib.util, multiprocessing, os, sys, time
from rollart_hpc.roles.engine import ENGINE_VARIABLE
sys.modules["__main__"].__spec__ = importlib.util.find_spec("rollart_hpc.roles.engine")
os.environ[ENGINE_VARIABLE] = str(os.getpid())
child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
child.start()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_what_vllm_starts_ends_with_a_killed_engine() -> None:
    with subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout
        child = os.pidfd_open(int(engine.stdout.readline()))
        engine.kill()
        engine.wait()
    try:
        assert select.select([child], [], [], LIMIT_S)[0], "it lives on"
    finally:
        os.close(child)
