"""The declarations of this repository say what is there."""

from __future__ import annotations

import configparser
from importlib.util import find_spec
from pathlib import Path

import pytest

from rollart_hpc.backends.declaration import Backend
from rollart_hpc.backends.registry import declared, load
from rollart_hpc.config.schema import EngineConfig
from rollart_hpc.engines.contract import EngineSetup
from rollart_hpc.engines.vllm import backend as vllm
from rollart_hpc.engines.vllm.settings import _reserved

ROOT = Path(__file__).resolve().parents[2]
OURS = [backend for role in ("engine", "trainer") for backend in declared(role)]


@pytest.mark.parametrize("backend", OURS, ids=lambda backend: f"{backend.role}.{backend.kind}")
def test_what_it_names_exists(backend: Backend) -> None:
    assert callable(load(backend, backend.make))
    assert all(find_spec(name) for name in backend.imports if name.startswith("rollart_hpc."))
    assert not backend.raw or find_spec(backend.raw.partition(":")[0])
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert backend.extra in setup["options.extras_require"]


def test_vllm_reserves_the_arguments_that_it_sets() -> None:
    setup = EngineSetup(Path("model"), EngineConfig(kind="vllm", device="cpu"), 100, Path("scratch"))
    assert set(vllm.BACKEND.reserved) == set(_reserved(setup))
