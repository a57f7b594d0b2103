"""The engine of this kind. Whether it is the bad one, its command line says."""

from pathlib import Path
from typing import Any

from rollart_hpc.engines.contract import EngineSetup
from rollart_hpc.engines.torch.engine import make as make_torch

BAD = b"engine-bad"


def make(setup: EngineSetup) -> Any:
    engine: Any = make_torch(setup)
    if BAD in Path("/proc/self/cmdline").read_bytes().split(b"\0"):
        engine.busy = lambda: False
        engine.step = list
    return engine
