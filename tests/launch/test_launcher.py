"""The contract of launchers: each one keeps it, and a new one needs no change of any command."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from pathlib import Path

import pytest

import rollart_hpc
from rollart_hpc.cli.main import main
from rollart_hpc.config.launchers import LAUNCHERS, Declared
from rollart_hpc.config.load import load, load_site
from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.launch.launcher import Launcher, Session, Watch, launcher_of, launcher_of_run
from rollart_hpc.launch.local import LocalLauncher
from rollart_hpc.launch.slurm.interactive import SlurmSession
from rollart_hpc.launch.status import View, compose
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState

PACKAGE = Path(rollart_hpc.__file__).parent


@pytest.mark.parametrize("name", LAUNCHERS)
def test_it_has_every_method_with_the_arguments_of_the_contract(name: str, run: RunDir) -> None:
    launcher = launcher_of(SiteConfig(launcher=name))
    assert launcher.is_cluster is LAUNCHERS[name].is_cluster
    assert_keeps(Launcher, launcher)
    assert_keeps(Watch, launcher.watch(run))


def assert_keeps(contract: type, thing: object) -> None:
    for method, declared in inspect.getmembers(contract, inspect.isfunction):
        if not method.startswith("_"):
            theirs = list(inspect.signature(getattr(thing, method)).parameters)
            assert theirs == list(inspect.signature(declared).parameters)[1:], method


def test_a_session_has_what_the_prompt_uses() -> None:
    for name in ("title", "log", "attach"):
        assert hasattr(Session, name) and hasattr(SlurmSession, name)


class Moon(LocalLauncher):
    """A third one."""

    is_cluster = True

    def watch(self, run: RunDir) -> Moon:  # type: ignore[override]
        self.run = run
        return self

    def look(self):
        return compose(self.run, View(RunState.CANCELLED, "the moon has set"))

    def history(self, run: RunDir) -> list[str]:
        return ["it was full"]


def test_a_third_launcher_is_one_line(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(LAUNCHERS, "moon", Declared("on the moon", f"{__name__}:Moon", True))
    monkeypatch.setattr("rollart_hpc.launch.launcher.import_module", lambda _: inspect.getmodule(Moon))
    write_resolved(run.site, replace(load_site("dev"), launcher="moon"))
    assert main(["status", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert "cancelled, attempt 0: the moon has set" in said and "it was full" in said
    assert main(["join", str(run.path), "env"]) == 2
    assert "is not running: it is cancelled" in capsys.readouterr().err


def test_a_run_belongs_to_the_launcher_of_its_site(run: RunDir) -> None:
    assert not launcher_of_run(run).is_cluster  # one of an earlier version has no site file
    write_resolved(run.site, load_site("dev"))
    assert launcher_of_run(run).is_cluster


def test_no_command_compares_launchers_by_name() -> None:
    for path in (PACKAGE / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                assert "launcher" not in ast.unparse(node), f"{path.name}: {ast.unparse(node)}"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "a run").create()
    write_resolved(run.config, load("quickstart"))
    return run
