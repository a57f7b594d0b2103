from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rollart_hpc.trainers.world import World, open_world
from tests.trainers.plain import make_model


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    torch.set_num_threads(1)
    alone = open_world(0, 1, "cpu")
    yield alone
    alone.close()


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tied")


@pytest.fixture(scope="session")
def untied_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "untied", tied=False)


@pytest.fixture
def restore_kernels() -> Iterator[None]:
    """Deterministic kernels are a switch of the whole process."""
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
