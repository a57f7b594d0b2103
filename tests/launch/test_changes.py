"""What may change between two starts of a run, and what is kept of it."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest

from rollart_hpc.config import fixed
from rollart_hpc.config.load import load, load_site
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError, UserError
from rollart_hpc.launch.changes import propose, read_changes
from rollart_hpc.launch.ownership import has_finished
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.plan_file import create_run, read_plan
from rollart_hpc.rundir import COMMITTED, RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "a run")
    config, site = load("quickstart", ["steps=100"]), load_site("dev")
    create_run(run, config, site, make_plan(config, site))
    return run


def save(run: RunDir, step: int) -> None:
    run.checkpoint(step).mkdir()
    (run.checkpoint(step) / COMMITTED).write_text("{}")


def finish(run: RunDir) -> None:
    save(run, 100)
    run.supervisor.write_text(json.dumps({"pid": 1, "start_ticks": 1, "host": "h", "state": "finished"}))


def test_changes_are_checked_planned_recorded_and_the_old_values_kept(run: RunDir) -> None:
    save(run, 40)
    before = run.config.read_bytes()
    proposal = propose(run, ["steps=400", "pools.compute.engines=3", "flow.alpha=2", "tasks.sorting.weight=0"])
    assert run.config.read_bytes() == before and not read_changes(run), "a proposal writes nothing"
    proposal.apply()
    config = read_resolved(run.config)
    assert (config.steps, config.flow.alpha, config.tasks["sorting"].weight) == (400, 2, 0.0)
    assert len([proc for proc in read_plan(run).of("engine") if proc.pool == "compute"]) == 3
    (change,) = read_changes(run)
    assert (change.step, change.keys["steps"]) == (40, (100, 400)) and len(change.keys) == 4
    assert change.as_text().startswith("changed after step 40: steps 100 -> 400, tasks.sorting.weight 3.0 -> 0")
    assert run.earlier_config(1).read_bytes() == before
    propose(run, ["steps=500"]).apply()
    assert read_resolved(run.earlier_config(2)).steps == 400 and len(read_changes(run)) == 2


def test_without_a_change_nothing_is_written(run: RunDir) -> None:
    before, plan = run.config.read_bytes(), run.plan.read_bytes()
    for overrides in ([], ["steps=100"]):
        propose(run, overrides).apply()
    assert run.config.read_bytes() == before and run.plan.read_bytes() == plan and not run.changes.exists()


def test_all_that_would_break_the_checkpoint_is_refused_at_once(run: RunDir) -> None:
    save(run, 40)
    wrong = [
        "seed=1", "trainer.lora.rank=8", "trainer.dtype=bfloat16", "name=other", "steps=39", "tasks.sorting=null",
    ]  # fmt: skip
    with pytest.raises(ConfigError) as refused:
        propose(run, wrong)
    listed = "\n".join(refused.value.problems)
    for override in wrong[:5]:
        assert override in listed
    assert "adapters of that shape" in listed and "set steps to at least 40" in listed
    assert "set tasks.sorting.weight=0" in listed
    with pytest.raises(ConfigError, match="another trainer can't read the checkpoint"):
        propose(run, ["trainer.kind=megatron"])


def test_before_the_first_checkpoint_only_the_model_and_the_names_are_fixed(run: RunDir) -> None:
    assert propose(run, ["seed=1", "trainer.lora.rank=8"]).config.trainer.lora.rank == 8
    with pytest.raises(ConfigError, match="the run has its base model"):
        propose(run, ["model.kind=directory", "model.path=/elsewhere"])


def test_a_finished_run_goes_on_only_with_more_steps(run: RunDir) -> None:
    finish(run)
    with pytest.raises(UserError) as refused:
        propose(run, ["flow.alpha=2"])
    assert "has finished all 100 steps" in refused.value.what
    assert refused.value.fix == f"to train further: rollart-hpc resume '{run.path}' steps=200"
    proposal = propose(run, ["steps=101"])
    assert any("trainer.schedule is linear" in warning for warning in proposal.warnings)
    proposal.apply()
    assert not has_finished(run) and "extended to 101 steps" in run.supervisor.read_text()


def test_a_wrong_key_or_value_is_told_as_for_a_new_run(run: RunDir) -> None:
    with pytest.raises(ConfigError) as refused:
        propose(run, ["stpes=5", "flow.alpha=-1", "nothing"])
    assert len(refused.value.problems) == 3 and "did you mean steps?" in str(refused.value)
    with pytest.raises(UserError, match="a job may have 2"):
        propose(run, ["trainer.ranks=40"])


def test_a_task_may_be_added(run: RunDir) -> None:
    save(run, 40)
    config = propose(run, ["tasks.instructions.weight=2"]).config
    assert config.tasks["instructions"].weight == 2 and config.tasks["instructions"].environment


def test_every_fixed_key_exists() -> None:
    for path in [*fixed._ALWAYS, *fixed._WITH_A_CHECKPOINT]:
        schema: type = RunConfig
        for name in path.split("."):
            assert is_dataclass(schema) and name in {field.name for field in fields(schema)}, path
            schema = get_type_hints(schema)[name]
