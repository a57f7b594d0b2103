"""The weights of a step are gathered once, in the type in which they are published."""

from __future__ import annotations

from pathlib import Path

from rollart_hpc.types import WeightsId
from rollart_hpc.weights.digest import digest
from rollart_hpc.weights.store import NodeStore
from tests.trainers.fsdp.gathers import main
from tests.trainers.fsdp.test_loading import run


def test_weights_are_gathered_once_and_in_bfloat16(model_dir: Path, tmp_path: Path) -> None:
    first, second = run(2, tmp_path, main, model=str(model_dir), store=str(tmp_path / "store"))
    assert first == second
    assert first["gathered"] == first["tensors"]
    assert first["bytes"] == 2 * first["numbers"]
    stored = NodeStore(tmp_path / "store", "node").open(WeightsId(1, 1))
    assert digest(stored) == stored.manifest.digest == first["digest"]
