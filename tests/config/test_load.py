from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest
import yaml

from rollart_hpc.config import packaged
from rollart_hpc.config.load import load, load_all, load_site
from rollart_hpc.config.modes import Mode
from rollart_hpc.config.resolved import read_resolved, write_resolved
from rollart_hpc.config.schema import TaskConfig
from rollart_hpc.errors import ConfigError, SiteError, UserError

Write = Callable[[str, str], Path]
RUN = "tasks: {lake: {file: tasks/lake.yaml}}\n"


def problems(run: str | Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(run, overrides)
    return caught.value.problems


def test_task_file_run_file_and_overrides_are_merged_in_this_order(write: Write) -> None:
    run = write("mine.yaml", "steps: 3\ntasks: {lake: {file: tasks/lake.yaml, max_turns: 7, params: {size: 8}}}\n")
    config = load(run, ["steps=4", "tasks.lake.params.slippery=true", "flow.alpha=0", "trainer.lr=1e-4"])
    lake = config.tasks["lake"]
    assert (config.name, config.steps, config.flow.alpha, config.trainer.lr) == ("mine", 4, 0, 1e-4)
    assert (lake.name, lake.max_turns, lake.affinity) == ("lake", 7, "compute")
    assert lake.params == {"size": 8, "slippery": True}


def test_the_same_task_file_may_serve_two_tasks(write: Write) -> None:
    run = write("r.yaml", "tasks: {a: {file: tasks/lake.yaml}, b: {file: tasks/lake.yaml, weight: 2}}\n")
    config = load(run)
    assert {name: (task.name, task.weight) for name, task in config.tasks.items()} == {"a": ("a", 1.0), "b": ("b", 2.0)}


def test_a_task_may_stand_under_the_path_of_its_file(write: Write, tmp_path: Path) -> None:
    write("tasks/named.yaml", "name: pond\n" + (tmp_path / "tasks/lake.yaml").read_text())
    run = write("r.yaml", "tasks:\n  tasks/lake.yaml: {max_turns: 7}\n  ./tasks/named.yaml:\n  frozenlake: {}\n")
    config = load(run, ["tasks.lake.weight=3", "tasks.lake.params.size=9"])
    assert list(config.tasks) == ["frozenlake", "lake", "pond"]
    lake = config.tasks["lake"]
    assert (lake.name, lake.max_turns, lake.weight, lake.params["size"]) == ("lake", 7, 3.0, 9)
    assert config.tasks["pond"].name == "pond"


def test_a_task_may_be_added_on_the_command_line(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write("r.yaml", "tasks: {frozenlake: {}}\n")
    monkeypatch.chdir(tmp_path)
    for override in ("tasks.lake.file=tasks/lake.yaml", "tasks={./tasks/lake.yaml: {}}"):
        assert load(run, [override]).tasks["lake"].max_turns == 5


def test_two_tasks_of_one_name_are_a_problem(write: Write, tmp_path: Path) -> None:
    write("other/lake.yaml", (tmp_path / "tasks/lake.yaml").read_text())
    run = write(
        "r.yaml", "tasks: {lake: {file: tasks/lake.yaml}, ./other/lake.yaml: {}, ./gone.yaml: {}, ./x.yaml: 3}\n"
    )
    found = problems(run)
    assert f"tasks.{tmp_path}/other/lake.yaml: another task is named lake (lake)" in found[0]
    assert f"tasks.{tmp_path}/gone.yaml: there is no task file" in found[1]
    assert f"tasks.{tmp_path}/x.yaml: 3 is not a section" in found[2] and len(found) == 3
    renamed = write("s.yaml", "tasks: {lake: {file: tasks/lake.yaml}, ./tasks/lake.yaml: {name: pond}}\n")
    assert list(load(renamed).tasks) == ["lake", "pond"]


def test_paths_are_relative_to_the_file_they_stand_in(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write("r.yaml", RUN)
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    (elsewhere / "own.py").write_text((tmp_path / "tasks/envs/lake.py").read_text().replace("Lake", "Own"))
    monkeypatch.chdir(elsewhere)
    assert load(run).tasks["lake"].environment == f"{tmp_path}/tasks/envs/lake.py:Lake"
    config = load(run, ["tasks.lake.environment=own.py:Own"])
    assert config.tasks["lake"].environment == f"{elsewhere}/own.py:Own"


def test_interpolation(write: Write) -> None:
    run = write("r.yaml", "seed: 5\nsteps: ${seed}\ntasks: {lake: {file: tasks/lake.yaml, max_turns: '${seed}'}}\n")
    config = load(run)
    assert (config.steps, config.tasks["lake"].max_turns) == (5, 5)


def test_every_problem_of_every_source_is_reported_at_once(write: Write) -> None:
    run = write("r.yaml", RUN.replace("}}", "}, gone: {}, odd: 3}") + "stesp: 3\nseed: ${nothing}\n")
    found = problems(run, "flow.alpha=-1", "mode", "tasks.lake.weight=heavy", "model.kind=tinny")
    text = "\n".join(found)
    for expected in (
        "mode: not of the form key=value",
        "tasks.gone: there is no task file named 'gone'",
        "tasks.odd: 3 is not a section",
        "seed: '${nothing}' can't be resolved",
        "stesp: unknown key (value 3); did you mean steps?",
        "flow.alpha: -1 is too small",
        "tasks.lake.weight: 'heavy' is text, expected a number",
        "model.kind: 'tinny' is not a choice; did you mean tiny?",
    ):
        assert expected in text
    assert len(found) == 8


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("tasks.lake.weight=0", "all weights are 0"),
        ("tasks.lake.max_response_tokens=2000", "tasks.lake.max_response_tokens: 2000 leaves no room"),
        (
            "tasks.lake.environment=nonsense",
            "tasks.lake.environment: 'nonsense' is not a reference to a class or function; write it as",
        ),
        ("tasks.lake.environment=gone.py:Env", "there is no file"),
        ("model.kind=directory", "model.path: empty"),
        ("name=a/b", "name: 'a/b' is not a legal name"),
        ("timeouts.silence_s=1", "timeouts.silence_s: 1 is too short: one late heartbeat"),
        (
            "engine.options.tensor_parallel=2",
            "engine.options.tensor_parallel: engine torch has no options; remove it, or change engine.kind",
        ),
        ("trainer.options.tensor_parallel=2", "trainer.options.tensor_parallel: unknown key"),
        (
            "trainer.options.shard_ranks=2",
            "trainer.options.shard_ranks: 2 does not divide trainer.ranks (1)",
        ),
    ],
)
def test_rules_between_keys(write: Write, override: str, expected: str) -> None:
    assert expected in "\n".join(problems(write("r.yaml", RUN), override))


def test_more_rules_between_keys(write: Write, tmp_path: Path) -> None:
    run = write("r.yaml", RUN)
    found = problems(
        run, "deterministic=true", "flow.redundancy=1", "pools.compute.engines=0", "pools.bandwidth.engines=0"
    )
    assert "deterministic: true needs 0" in found[0] and "pools: no engines" in found[1]
    (tmp_path / "model").mkdir()
    found = problems(run, "model.kind=directory", f"model.path={tmp_path}/model")
    assert "it has no config.json and no tokenizer.json" in found[0]


def test_trainer_ranks_make_whole_replicas(write: Write) -> None:
    sizes = ["trainer.kind=megatron", "trainer.options.tensor_parallel=2", "trainer.options.pipeline_parallel=2"]
    (found,) = problems(write("r.yaml", RUN), *sizes, "trainer.ranks=6")
    assert found.startswith("trainer.ranks: 6 is not a multiple of 4")
    assert load(write("r.yaml", RUN), [*sizes, "trainer.ranks=8"]).trainer.ranks == 8


def test_a_run_without_tasks_is_no_run(write: Write) -> None:
    assert "tasks: none" in problems(write("r.yaml", "steps: 1\n"))[0]


def test_odd_but_legal_things_are_warnings(write: Write) -> None:
    run = write("r.yaml", RUN)
    overrides = ["mode=sync", "flow.alpha=2", "pools.bandwidth.engines=1", "reward.workers=0"]
    warnings = "\n".join(load_all(run, overrides).warnings)
    assert "flow.alpha: 2 has no effect: in mode sync it is always 0" in warnings
    assert "tasks.lake.affinity: pool compute has no engines" in warnings
    assert "reward.workers: 0" in warnings
    assert load_all(run, ["mode=sync"]).warnings == []


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode != Mode.ROLLART])
def test_what_a_mode_ignores_is_a_warning_if_it_was_written(write: Write, mode: str) -> None:
    run = write("r.yaml", RUN + f"mode: {mode}\nflow: {{streaming: true, redundancy: 2, redundant_groups: 1}}\n")
    assert load_all(run).warnings == [
        f"flow.streaming: true has no effect: in mode {mode} it is always false",
        f"flow.redundancy: 2 has no effect: in mode {mode} it is always 0",
        f"flow.redundant_groups: 1 has no effect: in mode {mode} it is always 0",
    ]
    assert load_all(run, ["mode=rollart"]).warnings == []
    assert load_all(run, ["flow.streaming=false", "flow.redundancy=0", "flow.redundant_groups=0"]).warnings == []


def test_streaming_needs_an_estimator_that_works_on_groups(write: Write) -> None:
    run = write("r.yaml", RUN)
    (warning,) = load_all(run, ["algorithm.estimator=reinforce", "flow.streaming=true"]).warnings
    assert warning.startswith("flow.streaming: true has no effect: algorithm.estimator: reinforce")
    assert load_all(run, ["algorithm.estimator=reinforce"]).warnings == []


def test_site_defaults_lie_below_the_run_file(write: Write) -> None:
    run = write("r.yaml", RUN + "steps: 3\n")
    site = write("s.yaml", "launcher: local\ndefaults: {steps: 1, seed: 9}\n")
    config = load(run, site=site)
    assert (config.steps, config.seed, config.site) == (3, 9, str(site))


def test_a_bad_site_file(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"launcher: 'ray' is not a choice"):
        load_site(write("s.yaml", "launcher: ray\n"))


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "steps: 1\nsteps: 2\n", "\x00"])
def test_a_file_that_is_no_run_file(write: Write, text: str) -> None:
    with pytest.raises(UserError):
        load(write("r.yaml", text))


def test_missing_files() -> None:
    with pytest.raises(UserError, match="did you mean quickstart"):
        load("quickstrat")
    with pytest.raises(UserError, match=r"there is no run file .*/gone.yaml"):
        load("./gone.yaml")


def test_packaged_files_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "quickstart" in packaged.names("runs")
    assert packaged.find("runs", "quickstart").is_file()
    assert load_site("local").launcher == "local"


@pytest.mark.parametrize("name", packaged.names("runs"))
def test_packaged_runs_are_good(name: str, tmp_path: Path) -> None:
    """Those of a model directory get one on the command line."""
    model = yaml.safe_load(packaged.find("runs", name).read_text()).get("model", {})
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_text("{}")
    given = [f"model.path={tmp_path}"] if model.get("kind") == "directory" else []
    assert load_all(name, given).warnings == []


def test_the_resolved_file_is_all_that_is_needed(write: Write, tmp_path: Path) -> None:
    config = load(write("r.yaml", RUN), ["tasks.lake.params.note='1e-3'", "trainer.lr=1e-3"])
    path = tmp_path / "config.yaml"
    write_resolved(path, config)
    assert read_resolved(path) == config
    path.write_text(path.read_text().replace("\ntrainer:\n", "\ntrainer:\n  megatron: {tensor_parallel: 2}\n"))
    with pytest.raises(UserError, match=r"does not know: trainer\.megatron"):
        read_resolved(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_resolved_file_holds_every_default(tmp_path: Path) -> None:
    """A new default of a later version must not change a run that exists."""
    write_resolved(tmp_path / "config.yaml", load("quickstart"))
    written = msgspec.yaml.decode((tmp_path / "config.yaml").read_bytes())
    assert set(written["tasks"]["sorting"]) == {field.name for field in fields(TaskConfig)}


def test_a_damaged_resolved_file_is_the_machines_fault(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for text in ("a: [", "steps: many\n"):
        path.write_text(text)
        with pytest.raises(SiteError, match="is damaged"):
            read_resolved(path)
    with pytest.raises(UserError, match="not a run directory"):
        read_resolved(tmp_path / "gone" / "config.yaml")


def test_a_run_file_builds_on_another(tmp_path):
    run = tmp_path / "mine.yaml"
    run.write_text("base: quickstart\nsteps: 3\nflow: {alpha: 2}\n")
    mine, theirs = load(run), load("quickstart")
    assert (mine.name, mine.steps, mine.flow.alpha) == ("mine", 3, 2)
    assert (mine.tasks, mine.trainer) == (theirs.tasks, theirs.trainer)
    assert mine.flow.groups_per_step == theirs.flow.groups_per_step


def test_run_files_that_build_on_each_other_are_refused(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.yaml").write_text(f"base: ./{other}.yaml\n")
    with pytest.raises(UserError, match="or builds on it"):
        load(tmp_path / "a.yaml")


def test_mistakes_of_every_kind_in_every_file_are_reported_at_once_with_their_lines(write: Write) -> None:
    """Unknown keys, wrong types, rules between keys, code that does not fit: in the run, its base, a task, the site."""
    write("base.yaml", "steps: 3\n\nseed: none\n")
    write("tasks/odd.yaml", "environment: envs/lake.py:Lake\nreward: envs/lake.py:gone\nmax_turns: few\n")
    site = write(
        "s.yaml",
        "launcher: slurm\nnetwork: {ports: all}\nclasses:\n  h800:\n    partitoin: p\n  cpu: {partition: c, gres: x}\n",
    )
    run = write(
        "r.yaml",
        "base: ./base.yaml\ndeterministic: true\nflow:\n  redundancy: 1\n"
        "tasks:\n  odd: {file: tasks/odd.yaml, weight: big}\n  gone: {}\n",
    )
    with pytest.raises(ConfigError) as caught:
        load_all(run, ["trainer.ranks=0"], site)
    found = caught.value.problems
    for start, end in (
        ("tasks.gone: there is no task file named 'gone'", "[r.yaml, line 7]"),
        ("seed: 'none' is text", "[base.yaml, line 3]"),
        ("trainer.ranks: 0 is too small", "[command line]"),
        ("tasks.odd.weight: 'big' is text", "[r.yaml, line 6]"),
        ("tasks.odd.max_turns: 'few' is text", "[odd.yaml, line 3]"),
        ("tasks.odd.reward: ", "[odd.yaml, line 2]"),
        ("flow.redundancy: 1 makes batches depend", "[r.yaml, line 4]"),
        (f"site {site}: classes.h800.partitoin: unknown key", "[s.yaml, line 5]"),
        (f"site {site}: network.ports: 'all'", "[s.yaml, line 2]"),
        (f"site {site}: classes.cpu.gpus: 0, but gres or gpu names a GPU", "[s.yaml, line 6]"),
    ):
        assert [one for one in found if one.startswith(start) and one.endswith(end)], (start, found)
    assert len(found) == 10, found


def test_files_that_can_not_be_read_are_reported_with_the_others(write: Write) -> None:
    run, site = write("r.yaml", "a: ["), write("s.yaml", "launcher: ray\n")
    with pytest.raises(ConfigError) as caught:
        load_all(run, site=site)
    assert "r.yaml is not valid YAML" in caught.value.problems[0] and "launcher: 'ray'" in caught.value.problems[1]
    (first, second) = _problems_with(write("t.yaml", "stesp: 1\n" + RUN), write("u.yaml", "b: ["))
    assert first.startswith("stesp: unknown key") and "u.yaml is not valid YAML" in second


def _problems_with(run: Path, site: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_all(run, site=site)
    return caught.value.problems


def test_a_name_with_a_colon_is_one_more_problem(write: Write) -> None:
    assert "unknown key" in problems(write("r.yaml", RUN + "'a: b': 1\n"))[0]
