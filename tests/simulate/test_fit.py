"""A workload measured from a run directory: one that the simulator wrote, whose figures are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from rollart_hpc.config.load import load_all
from rollart_hpc.errors import UserError
from rollart_hpc.estimate.roofline import Pace
from rollart_hpc.rundir import RunDir
from rollart_hpc.simulate.build import Case, build
from rollart_hpc.simulate.cluster import Cluster
from rollart_hpc.simulate.figures import simulate
from rollart_hpc.simulate.fit import fitted
from rollart_hpc.simulate.laws import Law
from rollart_hpc.simulate.record import Recorder
from rollart_hpc.simulate.workload import Machines, TaskProfile, Workload

PACE = Pace(prefill_s=2e-4, decode_s=4e-4, attention_s=0.0, weights_s=0.0, kv_s=0.0, exchange_s=0.0, fixed_s=0.006)
MACHINES = Machines(
    train_fixed_s=0.2, push_s=0.05, install_s=0.1, train_token_s=1e-4, paces={"compute": PACE, "bandwidth": PACE}
)
TASKS = {
    "frozenlake": TaskProfile(Law(5, 0.3), Law(40), Law(8), Law(2), Law(0.05, 0.2), Law(0.2, 0.3), Law(0.02, 0.2)),
    "sorting": TaskProfile(Law(1), Law(30), Law(8), Law(20, 0.4), Law(0.05, 0.2), Law(0.01, 0.2), Law(0.02, 0.2)),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, RunDir]:
    loaded = load_all("quickstart", ["flow.groups_per_step=4", "validation.plays=0"], needs_model=False)
    case = Case(loaded.config, loaded.site, Workload("known", TASKS, MACHINES), None)
    recorder = Recorder(tmp_path_factory.mktemp("fit") / "run", case.config)
    cluster = Cluster(build(case, steps=8), observer=recorder.span)
    cluster.run(8)
    recorder.finish(cluster)
    return case, recorder.run


def test_the_figures_of_a_run_are_found_again(recorded: tuple[Case, RunDir]) -> None:
    case, run = recorded
    found = fitted(run, case.config)
    lake = found.tasks["frozenlake"]
    assert lake.turns.mean == pytest.approx(5, rel=0.15)
    assert lake.step.mean == pytest.approx(0.2, rel=0.1)
    assert lake.answer.mean == pytest.approx(2)
    assert found.tasks["sorting"].turns.mean == 1
    for pace in found.machines.paces.values():
        assert pace.decode_s == pytest.approx(PACE.decode_s, rel=0.05)
        assert pace.fixed_s == pytest.approx(PACE.fixed_s, rel=0.05)
    assert found.machines.install_s == pytest.approx(0.1, rel=0.01)


def test_the_measured_workload_predicts_its_own_run(recorded: tuple[Case, RunDir]) -> None:
    case, run = recorded
    known = fmean(simulate(case, steps=5, seed=seed)[0].step_s for seed in range(2))
    measured = replace(case, workload=fitted(run, case.config))
    assert fmean(simulate(measured, steps=5, seed=seed)[0].step_s for seed in range(2)) == pytest.approx(known, rel=0.2)


def test_a_run_without_traces_is_refused(tmp_path: Path, recorded: tuple[Case, RunDir]) -> None:
    case, run = recorded
    bare = RunDir(tmp_path / "bare").create()
    bare.config.write_bytes(run.config.read_bytes())
    with pytest.raises(UserError, match="has no traces"):
        fitted(bare, case.config)
