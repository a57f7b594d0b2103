"""Plans with jobs of their own."""

from __future__ import annotations

import pytest

from rollart_hpc.config.load import load_all
from rollart_hpc.errors import UserError
from rollart_hpc.launch.plan import Plan, make_plan
from rollart_hpc.launch.plan_file import create_run, read_plan
from rollart_hpc.rundir import RunDir

ENGINES = ("pools.compute.engines=2", "pools.bandwidth.engines=12")


def plan(*overrides: str) -> Plan:
    loaded = load_all("quickstart", overrides, site="dev")
    return make_plan(loaded.config, loaded.site)


def jobs(made: Plan) -> dict[str, tuple[str, ...]]:
    return {component.job: component.nodes for component in made.components}


def test_the_trainer_and_every_node_of_engines_are_jobs() -> None:
    made = plan("launch.mode=jobs", *ENGINES)
    assert jobs(made) == {"": ("cpu-0",), "trainer": ("h800-0",), "h800-1": ("h800-1",), "h20-0": ("h20-0",),
                          "h20-1": ("h20-1",)}  # fmt: skip
    assert {proc.role for proc in made.home[0].procs} == {"controller", "env", "reward"}
    assert [component.index for component in made.components] == [0, 1, 2, 3, 4]
    by_job = {component.job: component for component in made.components}
    assert by_job["h20-0"].per_node.gpus + by_job["h20-1"].per_node.gpus == 12
    assert {proc.role for proc in by_job["trainer"].procs} == {"trainer", "relay"}
    assert made.gpu_hours == (1 + 2 + 12) * made.time_minutes / 60


def test_the_engines_of_a_class_may_share_a_job() -> None:
    made = plan("launch.mode=jobs", "launch.engine_jobs=class", *ENGINES)
    assert list(jobs(made)) == ["", "trainer", "engines-h800", "engines-h20"]
    assert jobs(made)["engines-h20"] == ("h20-0", "h20-1")


def test_elastic_engines_are_jobs_in_both_modes() -> None:
    made = plan("pools.bandwidth.elastic.max=2", "pools.bandwidth.engines=1", "pools.compute.engines=1")
    assert [component.job for component in made.components] == [
        "", "", "", "engine-bandwidth-elastic-0", "engine-bandwidth-elastic-1"
    ]  # fmt: skip
    assert [component.pool for component in made.satellites] == ["bandwidth"] * 2
    assert made.satellites[0].nodes == ("h20-1",) and len(made.home) == 3


def test_the_plan_survives_its_file(tmp_path) -> None:
    loaded = load_all("quickstart", ["launch.mode=jobs"], site="dev")
    made, run = make_plan(loaded.config, loaded.site), RunDir(tmp_path / "run")
    create_run(run, loaded.config, loaded.site, made)
    assert read_plan(run) == made


@pytest.mark.parametrize("override", ["launch.mode=jobs", "pools.bandwidth.elastic.max=1"])
def test_a_site_whose_jobs_can_t_submit_refuses(override: str) -> None:
    loaded = load_all("quickstart", [override], site="dev")
    loaded.site.submit_from_compute = False
    with pytest.raises(UserError, match="submit_from_compute: false"):
        make_plan(loaded.config, loaded.site)


def test_a_pool_without_engines_needs_no_class(tmp_path) -> None:
    site = tmp_path / "site.yaml"
    classes = "{cpu: {partition: cpu, cpus: 16, max_minutes: 60}, big: {partition: big, cpus: 16, max_minutes: 60}}"
    site.write_text(f"launcher: slurm\nclasses: {classes}\nserves: {{cpu: cpu, compute: big}}\n")
    loaded = load_all("quickstart", ["pools.bandwidth.engines=0"], site=str(site))
    assert [component.hardware for component in make_plan(loaded.config, loaded.site).components] == ["cpu", "big"]
