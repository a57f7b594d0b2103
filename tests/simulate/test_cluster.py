"""Whole runs in virtual time: every mode, failures, split turns, and what the figures say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rollart_hpc.config.load import load_all
from rollart_hpc.config.modes import Mode
from rollart_hpc.errors import ConfigError, UserError
from rollart_hpc.flow import events as ev
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.observe import metrics
from rollart_hpc.observe.report import write_report
from rollart_hpc.observe.status import read_status
from rollart_hpc.simulate.build import Case, build, shape_for
from rollart_hpc.simulate.cluster import Cluster
from rollart_hpc.simulate.figures import compare, simulate
from rollart_hpc.simulate.notes import assume, told
from rollart_hpc.simulate.page import comparison_page
from rollart_hpc.simulate.presets import PRESETS, implied, workload_of
from rollart_hpc.simulate.record import Recorder
from rollart_hpc.simulate.workload import Machines

SMALL = ("flow.groups_per_step=4", "flow.group_size=4", "pools.compute.engines=4", "pools.bandwidth.engines=2")
SMALL += (
    "trainer.ranks=4",
    "env.workers=4",
    "tasks.frozenlake.max_turns=10",
    "tasks.instructions.max_response_tokens=2000",
)


def case_of(*overrides: str, machines: Machines | None = None) -> Case:
    loaded = load_all("qwen3-8b-h800-h20", [*SMALL, *overrides], needs_model=False)
    workload = implied(loaded.config)
    workload = replace(workload, machines=machines or workload.machines)
    return Case(loaded.config, loaded.site, workload, shape_for(loaded.config, "qwen3-8b"))


@pytest.mark.parametrize("mode", list(Mode))
def test_every_mode_trains(mode: Mode) -> None:
    outcome, cluster = simulate(case_of(f"mode={mode}", "flow.redundancy=0"), steps=3)
    assert not outcome.ended
    assert len(cluster.steps) == 5
    for step in cluster.steps:
        members = [member for group in step.record.groups for member in group.members]
        assert len(members) == 16
        assert all(step.record.version - 1 - member.first_version <= 1 for member in members)
    assert outcome.step_s > outcome.train_s > 0
    assert all(0 <= share.idle <= 1 for share in outcome.pools.values())
    stale = {Mode.SYNC: 0, Mode.SYNC_PLUS: 0}
    assert outcome.staleness == stale.get(mode, outcome.staleness)


def test_modes_gain_in_the_papers_order() -> None:
    found = compare(
        case_of("flow.groups_per_step=8"),
        list(Mode),
        [0],
        steps=4,
        plan_of=lambda each: make_plan(each.config, each.site),
    )
    seconds = [each.mean("step_s") for each in found]
    assert seconds[0] > seconds[1] > seconds[2] * 0.98
    assert min(seconds) == min(seconds[3:])
    page = comparison_page("a run", found, ["a note"])
    assert "http" not in page.replace("http://www.w3.org", "")
    assert all(mode in page for mode in Mode)


def test_the_same_seed_gives_the_same_figures() -> None:
    first, second = (simulate(case_of(), steps=2, seed=7)[0] for _ in range(2))
    assert replace(first, cpu_s=0.0) == replace(second, cpu_s=0.0)
    assert simulate(case_of(), steps=2, seed=8)[0].step_s != first.step_s


def test_engines_that_fail_cost_time_but_no_steps() -> None:
    broken = case_of(machines=Machines(engine_mtbf_h=0.01, engine_back_s=60))
    outcome, cluster = simulate(broken, steps=4)
    assert len(cluster.steps) == 6
    assert outcome.dropped["engine_lost"] > 0
    assert outcome.step_s > simulate(case_of(), steps=4)[0].step_s
    trained = [member.id for step in cluster.steps for group in step.record.groups for member in group.members]
    assert len(trained) == len(set(trained))


def test_split_turns_use_both_pools() -> None:
    case = case_of("tasks.frozenlake.split=true", "engine.kind=vllm")
    _, cluster = simulate(case, steps=2)
    assert cluster.core.tally.split_requests > 0
    assert cluster.spent("compute").prefill_tokens > cluster.spent("bandwidth").prefill_tokens
    assert cluster.spent("compute").decode_tokens == 0 < cluster.spent("bandwidth").decode_tokens


def test_the_core_is_told_the_lengths_of_prompts() -> None:
    cluster = Cluster(build(case_of(), steps=1))
    asked: list[ev.TurnWanted] = []
    handle = cluster.core.handle
    cluster.core.handle = lambda event: (
        asked.append(event) if isinstance(event, ev.TurnWanted) else None,
        handle(event),
    )[1]  # type: ignore[method-assign]
    cluster.run(1)
    by_play: dict[str, list[int]] = {}
    for event in asked:
        by_play.setdefault(event.trajectory, []).append(event.num_tokens)
    assert any(len(sizes) > 3 for sizes in by_play.values())
    assert all(sizes == sorted(sizes) for sizes in by_play.values())


def test_a_simulation_is_kept_like_a_run(tmp_path: Path) -> None:
    case = case_of()
    recorder = Recorder(tmp_path / "kept", case.config)
    cluster = Cluster(build(case, steps=3), observer=recorder.span)
    cluster.run(3)
    recorder.finish(cluster)
    steps = metrics.surviving_steps(metrics.read(recorder.run.metrics))
    assert [line["version"] for line in steps] == [1, 2, 3]
    assert steps[-1]["time_s"] == pytest.approx(cluster.clock.now)
    status = read_status(recorder.run.status)
    assert status is not None and status.step == 3
    report = write_report(recorder.run.path).read_text()
    assert "(simulated)" in report and "engine-compute-0" in report


# --- what is missing -------------------------------------------------------------------------


def test_a_site_without_figures_says_which() -> None:
    case = case_of()
    case.site.classes["h20"].gpu = ""
    case.site.classes["h20"].bandwidth_tb_s = 4.0
    with pytest.raises(ConfigError, match=r"classes.h20.tflops, classes.h20.gpu_memory_gb: unknown"):
        build(case, steps=1)


def test_this_machine_has_no_figures() -> None:
    loaded = load_all("quickstart", [], needs_model=False)
    with pytest.raises(ConfigError, match="--workload RUN_DIR"):
        build(Case(loaded.config, loaded.site, implied(loaded.config), None), steps=1)


def test_a_workload_must_know_the_tasks() -> None:
    case = replace(case_of(), workload=PRESETS["paper"])
    with pytest.raises(ConfigError, match=r"tasks.instructions: workload paper does not describe it"):
        build(case, steps=1)


def test_engines_too_small_for_a_trajectory_are_refused() -> None:
    with pytest.raises(ConfigError, match="room for"):
        build(case_of("engine.options.gpu_memory_utilization=0.22"), steps=1)


def test_an_unknown_workload_or_model_names_the_known_ones(tmp_path: Path) -> None:
    config = case_of().config
    with pytest.raises(UserError, match="presets: paper"):
        workload_of("papre", config)
    with pytest.raises(UserError, match=r"no config.yaml"):
        workload_of(str(tmp_path), config)
    with pytest.raises(UserError, match="qwen3-8b"):
        shape_for(config, "gpt")


@pytest.mark.parametrize("text", ["mfu=x", "mfu=0", "mfu=-1", "speed=2", "mfu", "mfu=inf"])
def test_assumptions_are_checked(text: str) -> None:
    with pytest.raises(UserError):
        assume(Machines(), [text])


def test_every_assumption_is_told() -> None:
    case = case_of(machines=assume(Machines(), ["mfu=0.2", "push_s=9"]))
    notes = told(case)
    assert any(note.startswith("mfu=0.2:") for note in notes)
    assert any(note.startswith("push_s=9:") for note in notes)
