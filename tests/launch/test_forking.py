"""The directory of a fork: what it takes over, what it may change, and that there is a whole one or none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rollart_hpc.checkpoint_dirs import seal
from rollart_hpc.config.load import load, load_site
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.errors import ConfigError, UserError
from rollart_hpc.launch import forking
from rollart_hpc.launch.forking import fork, forked_config
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.plan_file import create_run, read_plan
from rollart_hpc.observe import ledger, lineage
from rollart_hpc.rundir import Checkpoint, RunDir
from tests.observe.test_ledger import line


@pytest.fixture
def source(tmp_path: Path) -> RunDir:
    """A run with a checkpoint of step 2 and a model of its own."""
    run = RunDir(tmp_path / "first")
    config, site = load("quickstart", ["steps=3"]), load_site("local")
    create_run(run, config, site, make_plan(config, site))
    run.model.mkdir()
    (run.model / "config.json").write_text("{}")
    (run.checkpoint(2) / "trainer").mkdir(parents=True)
    (run.checkpoint(2) / "trainer" / "weights").write_text("w2")
    seal(run.checkpoint(2), {"version": 2, "attempt": 1})
    run.ledger.write_bytes(ledger.encode(line(1)) + b"\n" + ledger.encode(line(2)) + b"\n")
    return run


def forked(source: RunDir, target: Path, *overrides: str) -> RunDir:
    (checkpoint,) = source.committed_checkpoints()
    config, _ = forked_config(source, checkpoint.step, overrides)
    fork(source, checkpoint, RunDir(target), config, load_site("local"))
    return RunDir(target)


def test_a_fork_has_everything_to_be_resumed(source: RunDir, tmp_path: Path) -> None:
    run = forked(source, tmp_path / "second", "steps=8", "trainer.lr=1e-4", "env.workers=1")
    config = read_resolved(run.config)
    assert (config.name, config.steps, config.trainer.lr) == ("quickstart-fork", 8, 1e-4)
    assert len(list(read_plan(run).of("env"))) == 1
    assert run.run_id != source.run_id and (run.model / "config.json").read_text() == "{}"
    (checkpoint,) = run.committed_checkpoints()
    assert checkpoint.step == 2 and (checkpoint.path / "trainer" / "weights").read_text() == "w2"
    began = ledger.origin(run.ledger)
    assert began == ledger.Forked(0, 2, "w2", source.run_id, str(source.path)) and not lineage.problems(run)
    shutil.rmtree(source.path)
    assert (checkpoint.path / "trainer" / "weights").read_text() == "w2", "the other run may be removed"


def test_a_model_of_the_users_is_linked(source: RunDir, tmp_path: Path) -> None:
    shutil.move(source.model, tmp_path / "model")
    source.model.symlink_to(tmp_path / "model")
    run = forked(source, tmp_path / "elsewhere" / "second", "steps=8")
    assert run.model.is_symlink() and run.model.resolve() == tmp_path / "model"


def test_what_the_checkpoint_depends_on_is_refused_at_once(source: RunDir) -> None:
    with pytest.raises(ConfigError) as refused:
        forked_config(source, 2, ["steps=2", "seed=9", "trainer.lora.rank=4", "model.kind=directory"])
    said = str(refused.value)
    assert all(key in said for key in ("seed=9", "trainer.lora.rank=4", "model.kind=directory", "add e.g. steps=4"))


def test_a_damaged_checkpoint_leaves_nothing(source: RunDir, tmp_path: Path) -> None:
    (source.checkpoint(2) / "trainer" / "weights").write_text("longer")
    with pytest.raises(Exception, match="damaged"):
        forked(source, tmp_path / "second", "steps=8")
    assert not (tmp_path / "second").exists()


def test_a_checkpoint_that_the_run_removes_meanwhile(
    source: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(model: Path, target: Path) -> None:
        shutil.rmtree(source.checkpoint(2))

    monkeypatch.setattr(forking, "_take_model", late)
    with pytest.raises(UserError, match="has removed its checkpoint of step 2 meanwhile"):
        forked(source, tmp_path / "second", "steps=8")
    assert not (tmp_path / "second").exists()


def test_without_hard_links_files_are_copied(source: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: str, target: str) -> None:
        raise OSError("another file system")

    monkeypatch.setattr(forking.os, "link", link)
    run = forked(source, tmp_path / "second", "steps=8")
    assert (run.checkpoint(2) / "trainer" / "weights").stat().st_nlink == 1
    assert Checkpoint(2, run.checkpoint(2)) in run.committed_checkpoints()
