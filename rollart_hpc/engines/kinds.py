"""Makes the engine of the configured kind. Imports only that backend."""

from __future__ import annotations

from rollart_hpc.backends.registry import find, load
from rollart_hpc.engines.contract import Engine, EngineSetup


def make_engine(setup: EngineSetup) -> Engine:
    backend = find("engine", setup.config.kind)
    engine: Engine = load(backend, backend.make)(setup)
    return engine
