"""Settings without effect: each row of the table warns when it should, and only then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rollart_hpc.config.effects import TABLE
from rollart_hpc.config.load import load_all
from rollart_hpc.errors import ConfigError

Write = Callable[[str, str], Path]

RUN = "tasks: {lake: {file: tasks/lake.yaml}, pond: {file: tasks/lake.yaml}}\npools: {compute: {}, bandwidth: {}}\n"

# what the user writes; what makes it idle; what gives it an effect
CASES = [
    ("trainer.lora.alpha=16", ["trainer.lora.rank=0"], ["trainer.lora.rank=8"]),
    ("trainer.lora.targets=q_proj", [], ["trainer.lora.rank=8"]),
    ("trainer.min_lr_ratio=0.5", ["trainer.schedule=constant"], ["trainer.schedule=cosine"]),
    ("algorithm.loss_params.clip_low=0.1", ["algorithm.decoupled=true"], []),
    ("algorithm.loss_params.clip_high=0.28", ["algorithm.decoupled=true"], []),
    ("algorithm.loss_params.dual_clip=4.0", ["algorithm.decoupled=true"], []),
    ("algorithm.kl_estimator=k2", [], ["algorithm.kl=0.1"]),
    ("algorithm.kl_in=reward", [], ["algorithm.kl=0.1"]),
    ("algorithm.kl_weighted=true", ["algorithm.kl=0.1", "algorithm.kl_in=reward"], ["algorithm.kl=0.1"]),
    ("algorithm.kl_refresh=5", [], ["algorithm.kl=0.1"]),
    ("algorithm.kl_target=0.01", [], ["algorithm.kl=0.1"]),
    ("algorithm.kl_horizon=500", [], ["algorithm.kl=0.1", "algorithm.kl_target=0.01"]),
    ("algorithm.critic.lr=0.01", [], ["algorithm.estimator=gae"]),
    ("algorithm.critic.warmup_steps=3", [], ["algorithm.estimator=gae"]),
    ("algorithm.critic.clip=0.2", [], ["algorithm.estimator=gae"]),
    ("algorithm.estimator=rloo", ["algorithm.loss=raft_pp"], []),
    ("validation.every=5", ["validation.plays=0"], ["steps=20"]),
    ("validation.every=50", ["steps=20"], ["steps=200"]),
    ("validation.temperature=0.5", ["validation.plays=0"], []),
    ("validation.samples=4", [], ["validation.temperature=0.5"]),
    ("model.path=/tmp", ["model.kind=tiny"], None),
    ("weights.collective=mpi", ["weights.transport=direct"], []),
    ("reward.elastic.queue_per_worker=8", [], ["reward.elastic.max_workers=2"]),
    ("reward.elastic.settle_s=8", [], ["reward.elastic.max_workers=2"]),
    ("reward.elastic.idle_s=8", [], ["reward.elastic.max_workers=2"]),
    ("reward.elastic.time_minutes=8", [], ["reward.elastic.max_workers=2"]),
    ("launch.engine_jobs=class", [], ["launch.mode=jobs"]),
    ("launch.wait_s=8", [], ["launch.mode=jobs"]),
    ("pools.compute.elastic.turns_per_engine=8", [], ["pools.compute.elastic.max=2"]),
    ("pools.compute.elastic.settle_s=8", ["pools.compute.elastic={min: 2, max: 2}"], ["pools.compute.elastic.max=2"]),
    ("pools.compute.elastic.idle_s=8", ["pools.compute.elastic={min: 2, max: 2}"], ["pools.compute.elastic.max=2"]),
    ("pools.compute.speed=0.5", ["pools.bandwidth.engines=0"], []),
    ("pools.bandwidth.engine.max_running=8", ["pools.bandwidth.engines=0"], []),
    ("pools.bandwidth.tensor_parallel=2", ["pools.bandwidth.engines=0"], None),
    ("tasks.lake.affinity=compute", ["pools.bandwidth.engines=0"], []),
    ("tasks.lake.group_filter=same_reward", ["tasks.lake.weight=0"], []),
    ("tasks.lake.filter_tolerance=0.1", ["tasks.lake.group_filter=same_success"],
     ["tasks.lake.group_filter=same_reward"]),
    ("tasks.lake.filter_tries=3", [], ["tasks.lake.group_filter=same_reward"]),
]  # fmt: skip


def idle(write: Write, *overrides: str) -> list[str]:
    found = load_all(write("r.yaml", RUN), overrides).warnings
    return [warning for warning in found if "has no effect" in warning]


@pytest.mark.parametrize(("said", "without", "with_effect"), CASES, ids=[case[0] for case in CASES])
def test_a_setting_without_effect_is_told(
    write: Write, said: str, without: list[str], with_effect: list[str] | None
) -> None:
    key, _, value = said.partition("=")
    found = idle(write, said, *without) if not key.endswith(("settle_s", "idle_s")) else idle(write, *without, said)
    assert [warning for warning in found if warning.startswith(f"{key}: {value} has no effect: ")], found
    if with_effect is not None:
        assert idle(write, said, *with_effect) == []


def test_every_row_of_the_table_has_a_case() -> None:
    tried = {case[0].partition("=")[0].replace(".lake.", ".*.") for case in CASES}
    tried = {key.replace(".compute.", ".*.").replace(".bandwidth.", ".*.") for key in tried}
    keys = {key for row in TABLE for key in row.keys} - {"pools.*.class"}  # needs a site with classes
    assert {"pools.*.engine.*" if key == "pools.*.engine.max_running" else key for key in tried} == keys


def test_defaults_and_what_nobody_wrote_are_not_told(write: Write) -> None:
    assert idle(write, "trainer.lora.alpha=32", "algorithm.decoupled=true", "validation.plays=0") == []


def test_nothing_to_learn_is_told(write: Write) -> None:
    run = write("r.yaml", RUN)
    (warning,) = load_all(run, ["flow.group_size=1"]).warnings
    assert warning.startswith("flow.group_size: 1 with estimator grpo") and "every advantage is 0" in warning
    assert load_all(run, ["flow.group_size=1", "algorithm.estimator=reinforce"]).warnings == []
    (warning,) = load_all(run, ["tasks.pond.weight=0"]).warnings
    assert warning == "tasks.pond.weight: 0: never trained on, only validated; tasks.pond=null drops it"
    (warning,) = load_all(run, ["trainer.warmup_steps=10", "steps=10"]).warnings
    assert warning.startswith("trainer.warmup_steps: 10, but the run has 10 steps")
    with pytest.raises(ConfigError, match="same_reward drops every group of one trajectory"):
        load_all(run, ["flow.group_size=1", "tasks.lake.group_filter=same_reward"])


def test_a_base_says_which_tasks_it_brings_and_null_drops_one(write: Write) -> None:
    write("below.yaml", "tasks: {lake: {file: tasks/lake.yaml}, ./tasks/lake.yaml: {name: pond}, frozenlake: {}}\n")
    run = write("r.yaml", "base: below.yaml\ntasks: {sorting: , frozenlake: }\n")
    loaded = load_all(run)
    assert sorted(loaded.config.tasks) == ["lake", "pond", "sorting"]
    assert loaded.notes == [
        "tasks from base below.yaml: lake, pond",
        "tasks of base below.yaml that are dropped: frozenlake",
    ]
    loaded = load_all(run, ["tasks.lake=null", "tasks.pond=null"])
    assert list(loaded.config.tasks) == ["sorting"] and "task lake is dropped: tasks.lake=null" in loaded.notes
    by_path = write("s.yaml", "base: below.yaml\ntasks: {pond: null}\n")
    assert sorted(load_all(by_path).config.tasks) == ["frozenlake", "lake"]
    with pytest.raises(ConfigError) as error:
        load_all(run, ["tasks.nope=null"])
    assert len(error.value.problems) == 1 and "no such task to drop; the run has: lake, " in error.value.problems[0]
