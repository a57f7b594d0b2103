"""The run files for the paper's testbed: planned and rendered as a GPU site would submit them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from rollart_hpc.config.load import Loaded, load_all
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.slurm import script as scripts
from rollart_hpc.rundir import RunDir

GOLDEN = Path(__file__).parent.parent / "golden"
RUNS = {"qwen3-8b-h800-h20": 1, "qwen3-32b-h800-h20": 4}  # and the GPUs of an engine


@pytest.fixture
def loaded(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.setenv("HOME", "/home/user")
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_text("{}")
    return load_all(request.param, [f"model.path={tmp_path}"])


@pytest.mark.parametrize("loaded", RUNS, indirect=True)
def test_it_is_the_setting_of_the_paper(loaded: Loaded) -> None:
    config, site = loaded.config, loaded.site
    assert not loaded.warnings and site.name == "h800-h20"
    assert config.flow.groups_per_step * config.flow.group_size == 512 and config.flow.group_size == 8
    assert {task.max_tokens for task in config.tasks.values()} == {32768}
    assert {task.affinity for task in config.tasks.values()} == {"compute", "bandwidth"}
    assert len({task.weight for task in config.tasks.values()}) == 1, "tasks are sampled uniformly"
    slots = config.env.workers * config.env.slots
    admitted = (1 + config.flow.alpha) * config.flow.groups_per_step * (config.flow.group_size + config.flow.redundancy)
    assert slots >= admitted


@pytest.mark.parametrize("loaded", RUNS, indirect=True)
def test_every_gpu_of_the_testbed_has_its_work(loaded: Loaded) -> None:
    plan = make_plan(loaded.config, loaded.site)
    gpus = {component.hardware: component.num_gpus for component in plan.components}
    assert gpus == {"cpu": 0, "h800": 96, "h20": 32}
    used: Counter[str] = Counter()
    for proc in plan.procs:
        used[f"{proc.role} {proc.pool}".strip()] += proc.needs.gpus
    assert {role: count for role, count in used.items() if count} == {
        "trainer": 32, "engine compute": 64, "engine bandwidth": 32
    }  # fmt: skip
    tensor_parallel = RUNS[loaded.config.name]
    assert {proc.needs.gpus for proc in plan.procs if proc.role == "engine"} == {tensor_parallel}


@pytest.mark.parametrize("loaded", RUNS, indirect=True)
def test_the_script_is_the_golden_one(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/rollart/bin/python")
    monkeypatch.setattr(scripts, "_is_installed", lambda parent: True)
    run = RunDir(f"/shared/runs/{loaded.config.name}")
    text = scripts.render_script(make_plan(loaded.config, loaded.site), loaded.config, loaded.site, run)
    path = GOLDEN / f"{loaded.config.name}.sh"
    if os.environ.get("ROLLART_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
