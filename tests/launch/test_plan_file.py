"""The plan in the run directory: made once, whoever starts the run later."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollart_hpc.config.load import load, load_site
from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.schema import PoolConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.launch import plan_file
from rollart_hpc.launch.plan import Plan, make_plan
from rollart_hpc.launch.plan_file import create_run, read_plan, settle_plan
from rollart_hpc.rundir import RunDir

CONFIG = load("quickstart")


@pytest.fixture
def another_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a newer version of the package may have."""
    monkeypatch.setattr(plan_file, "make_plan", lambda *_: Plan(()))


@pytest.mark.parametrize("name", ["local", "dev"])
def test_what_was_planned_is_what_is_read(tmp_path: Path, name: str) -> None:
    site = load_site(name)
    run, plan = RunDir(tmp_path / "run"), make_plan(CONFIG, site)
    create_run(run, CONFIG, site, plan)
    assert read_plan(run) == settle_plan(run) == plan
    assert bool(plan.components) == (name == "dev")


@pytest.mark.usefixtures("another_planner")
def test_neither_another_version_nor_another_configuration_changes_it(tmp_path: Path) -> None:
    site = load_site("dev")
    run, plan = RunDir(tmp_path / "run"), make_plan(CONFIG, site)
    create_run(run, CONFIG, site, plan)
    changed = load("quickstart")
    changed.pools["compute"] = PoolConfig(7)
    write_resolved(run.config, changed)
    assert settle_plan(run) == plan


def test_a_directory_of_an_earlier_version_is_given_its_plan_by_who_carries_it_out(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    write_resolved(run.config, CONFIG)
    assert read_plan(run) == make_plan(CONFIG) and not run.plan.exists()
    assert settle_plan(run) == make_plan(CONFIG) and run.plan.exists()


def test_a_damaged_plan_says_what_to_do(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    create_run(run, CONFIG, load_site("local"), make_plan(CONFIG))
    run.plan.write_text('{"procs": 3}')
    with pytest.raises(SiteError, match="damaged") as error:
        read_plan(run)
    assert "recompute the plan" in error.value.fix
