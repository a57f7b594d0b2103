"""Which classes are looked at, and how much shared memory the weights of a run need there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rollart_hpc.config.load import load, load_site
from rollart_hpc.doctor.probe import look_at_node
from rollart_hpc.doctor.scope import Scope, scope_of_run, scope_of_site


def test_a_class_that_serves_nothing_is_left_alone() -> None:
    assert scope_of_site(load_site("dev-mixed")).classes == ("fat.cpu", "h800", "h20")
    assert scope_of_site(load_site("single")).classes == ("gpu",)


def test_a_run_says_which_classes_and_how_large_its_model_is(tmp_path: Path) -> None:
    for name, size in (("config.json", 10), ("tokenizer.json", 10), ("a.safetensors", 700), ("b.safetensors", 300)):
        (tmp_path / name).write_bytes(b"{}" + b" " * (size - 2))
    config = load("quickstart", ["model.kind=directory", f"model.path={tmp_path}", "pools.bandwidth.engines=0"])
    site = load_site("dev")
    assert scope_of_run(config, site) == Scope(("cpu", "h800"), 1000)
    assert scope_of_run(config, site).shm_bytes == 3000


def test_shared_memory_that_is_too_small_for_three_versions_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=40e9))
    monkeypatch.setenv("SLURM_STEP_GPUS", "0")
    site = load_site("dev")

    def failures(name: str, shm_bytes: int) -> list[str]:
        return [one.what for one in look_at_node(site, name, shm_bytes) if one.level == "fail"]

    assert failures("h800", 30_000_000_000) == [] == failures("cpu", 48_000_000_000)
    (what,) = failures("h800", 48_000_000_000)
    assert what == "/dev/shm: 40.0 GB free, 3 versions of the weights need 48.0 GB"
