from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from rollart_hpc.config.algorithms import Part, entries, find, full_params
from rollart_hpc.config.load import change, load, load_all
from rollart_hpc.config.recipes import RECIPES
from rollart_hpc.config.resolved import read_resolved, write_resolved
from rollart_hpc.errors import ConfigError, UserError

Write = Callable[[str, str], Path]
RUN = "tasks: {lake: {file: tasks/lake.yaml}}\n"
OWN = """
def mine(first, strength=0.1): ...
def batched(first): ...
batched.scope = "batch"
def odd(first): ...
odd.scope = "galaxy"
"""


def problems(run: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(run, overrides)
    return caught.value.problems


@pytest.mark.parametrize("part", Part)
def test_every_entry_says_what_it_is_and_its_defaults_are_those_of_its_function(part: Part) -> None:
    for name, entry in entries(part).items():
        assert entry.name == name and entry.help and is_dataclass(entry.params), name
        declared, own = full_params(entry, {}), entry.function.__kwdefaults__ or {}
        assert declared == own, name


def test_reading_the_registries_needs_no_torch() -> None:
    code = (
        "import sys; from rollart_hpc.config.algorithms import Part, entries\n"
        "assert all(entries(part) for part in Part) and 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("algorithm.estimator=grop", "algorithm.estimator: there is no estimator 'grop'; did you mean grpo? legal: "),
        ("algorithm.loss=x", "algorithm.loss: there is no loss 'x'; legal: ppo, "),
        ("algorithm.corrections.x={}", "algorithm.corrections.x: there is no correction 'x'; legal: none, token"),
        (
            "algorithm.loss_params.clap=1",
            "algorithm.loss_params.clap: unknown key (value 1); legal keys here: clip_low",
        ),
        ("algorithm.loss_params.clip_low=2", "algorithm.loss_params.clip_low: 2 is too large, must be at most 1"),
        ("algorithm.shaping.overlong=3", "algorithm.shaping.overlong: 3 is not a section"),
        ("algorithm.shaping.overlong.counts=some", "algorithm.shaping.overlong.counts: 'some' is not a choice"),
        ("algorithm.corrections.token={}", "algorithm.corrections.token: weighs tokens by their probability"),
        ("algorithm={kl: 0.1, kl_estimator: k1}", "algorithm.kl_estimator: k1 in the loss has no gradient"),
        ("algorithm.aggregation=no.such:thing", "algorithm.aggregation: 'no.such:thing': there is no module no.such"),
    ],
)
def test_mistakes_are_told(write: Write, override: str, expected: str) -> None:
    (problem,) = problems(write("r.yaml", RUN), override)
    assert problem.startswith(expected)


def test_old_keys_are_read_as_parameters(write: Write) -> None:
    run = write("r.yaml", RUN + "algorithm: {clip_high: 0.28, normalise_std: false}\n")
    algorithm = load(run, ["algorithm.clip_low=0.1"]).algorithm
    assert algorithm.loss_params == {"clip_high": 0.28, "clip_low": 0.1}
    assert algorithm.estimator_params == {"normalise_std": False}


def test_a_run_directory_of_an_older_version_is_read(write: Write, tmp_path: Path) -> None:
    config = load(write("r.yaml", RUN), ["algorithm.estimator=reinforce"])
    path = tmp_path / "config.yaml"
    write_resolved(path, config)
    old = "algorithm:\n  normalise_std: true\n  clip_low: 0.2\n  clip_high: 0.28\n"
    path.write_text(path.read_text().replace("algorithm:\n", old))
    algorithm = read_resolved(path).algorithm
    assert (algorithm.estimator_params, algorithm.loss_params) == ({}, {"clip_high": 0.28})


def test_another_loss_drops_the_parameters_of_the_first(write: Write) -> None:
    below = write("below.yaml", RUN + "algorithm: {loss_params: {clip_high: 0.28}, estimator: grpo}\n")
    run = write("r.yaml", "base: below.yaml\nalgorithm: {loss: cispo, loss_params: {high: 4}}\n")
    assert load(run).algorithm.loss_params == {"high": 4}
    config = load(below, ["algorithm.loss=cispo"])
    assert config.algorithm.loss_params == {}
    assert load(below, ["algorithm.loss=ppo"]).algorithm.loss_params == {"clip_high": 0.28}
    changed, _ = change(load(below), ["algorithm.loss=gspo"], "run")
    assert changed.algorithm.loss_params == {}


def test_a_part_without_parameters_may_be_left_empty(write: Write) -> None:
    run = write("r.yaml", RUN + "algorithm:\n  shaping:\n    leave_out_cut:\n    whiten:\n")
    algorithm = load(run).algorithm
    assert list(algorithm.shaping) == ["leave_out_cut", "whiten"]
    assert algorithm.needs_whole_batch


def test_a_batch_scope_of_any_part_stops_streaming(write: Write) -> None:
    run = write("r.yaml", RUN)
    (warning,) = load_all(run, ["algorithm.shaping.normalise_batch={}", "flow.streaming=true"]).warnings
    assert warning == ("flow.streaming: true has no effect: algorithm.shaping.normalise_batch needs the whole batch")


def test_functions_of_the_users_own(write: Write, tmp_path: Path) -> None:
    write("own.py", OWN)
    run = write("r.yaml", RUN + "algorithm: {loss: './own.py:mine', shaping: {'./own.py:mine': {strength: 2}}}\n")
    algorithm = load(run, ["algorithm.loss_params.strength=1"]).algorithm
    assert algorithm.loss == f"{tmp_path}/own.py:mine"
    assert algorithm.shaping == {f"{tmp_path}/own.py:mine": {"strength": 2}}
    assert not algorithm.needs_whole_batch
    assert load(run, [f"algorithm.estimator={tmp_path}/own.py:batched"]).algorithm.needs_whole_batch
    (problem,) = problems(run, "algorithm.loss_params.strenth=1")
    assert problem.startswith("algorithm.loss_params.strenth: mine has no such argument; did you mean strength?")
    with pytest.raises(UserError, match="galaxy"):
        find(Part.ESTIMATOR, f"{tmp_path}/own.py:odd")


# --- recipes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_makes_a_run_without_problems_or_warnings(name: str, write: Write) -> None:
    loaded = load_all(write("r.yaml", RUN), [f"algorithm.recipe={name}"])
    assert loaded.warnings == []
    for key, value in RECIPES[name].algorithm.items():
        found = getattr(loaded.config.algorithm, key)
        assert found == value or key == "critic", key


def test_any_key_overrides_a_recipe(write: Write) -> None:
    run = write("r.yaml", f"{RUN}algorithm: {{recipe: dapo, entropy: 0.01, shaping: {{overlong: {{buffer: 9}}}}}}\n")
    loaded = load_all(run, ["algorithm.loss_params.clip_low=0.1"])
    algorithm = loaded.config.algorithm
    assert algorithm.loss_params == {"clip_low": 0.1, "clip_high": 0.28}
    assert (algorithm.entropy, algorithm.shaping) == (0.01, {"overlong": {"buffer": 9}})
    assert loaded.config.tasks["lake"].group_filter == "same_success"
    (note,) = loaded.notes
    assert note.startswith("algorithm.recipe: dapo is estimator=grpo, loss=ppo, loss_params={clip_high: 0.28, clip_low")
    other = load(run, ["algorithm.loss=cispo", "tasks.lake.group_filter=none"])
    assert (other.algorithm.loss_params, other.tasks["lake"].group_filter) == ({}, "none")


def test_a_recipe_replaces_the_section_below_it(write: Write) -> None:
    below = f"{RUN}algorithm: {{entropy: 0.5, loss_params: {{clip_high: 0.9}}, aggregation: sample_sum}}\n"
    base = write("base.yaml", below)
    above = write("r.yaml", "base: base.yaml\nalgorithm: {recipe: lite_ppo}\n")
    for run, given in ((base, ["algorithm.recipe=lite_ppo"]), (above, [])):
        algorithm = load(run, given).algorithm
        assert (algorithm.estimator, algorithm.loss_params, algorithm.entropy) == ("lite_ppo", {}, 0.0)


def test_false_leaves_out_a_part(write: Write) -> None:
    run = write("r.yaml", f"{RUN}algorithm: {{recipe: dapo, shaping: {{overlong: false, leave_out_cut: }}}}\n")
    config = load(run)
    assert list(config.algorithm.shaping) == ["leave_out_cut"]
    changed, _ = change(config, ["algorithm.entropy=0.1"], "r")
    assert list(changed.algorithm.shaping) == ["leave_out_cut"]
    again, _ = change(config, ["algorithm.recipe=dapo"], "r")
    assert list(again.algorithm.shaping) == ["overlong"]


def test_a_recipe_that_does_not_exist_is_told(write: Write) -> None:
    (problem,) = problems(write("r.yaml", RUN), "algorithm.recipe=dapoo")
    assert "algorithm.recipe: " in problem and "did you mean dapo" in problem


def test_what_a_trainer_or_a_batch_can_not_do_is_told(write: Write) -> None:
    run = write("r.yaml", RUN)
    (problem,) = problems(run, "algorithm.updates=17")
    assert problem.startswith("algorithm.updates: 17 mini-batches of 16 groups; set it to 16 or less")
    (problem,) = problems(run, "algorithm.kl_refresh=5", "algorithm.kl=0.1", "trainer.lora.rank=4")
    assert "never refreshed" in problem
    assert load(run, ["algorithm.updates=2"]).algorithm.needs_whole_batch
