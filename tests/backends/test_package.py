"""A package with an engine and a trainer of its own, as a user of it meets them before anything starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.installing import PACKAGE, install

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "tests" / "runs" / "small.yaml"
PAGE = ROOT / "docs" / "backends.md"
BLOCK = re.compile(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("package"))


def cli(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    command = [sys.executable, "-m", "rollart_hpc.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=site, env=environment)


def check(site: Path, *overrides: str) -> str:
    return cli(site, "check", str(RUN), "engine.kind=plain", "trainer.kind=plain", *overrides).stderr


def test_its_kinds_and_options_are_legal(site: Path) -> None:
    assert check(site, "engine.options.tokens_per_step=2", "trainer.options.momentum=0.5") == ""


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("engine.kind=plane", "there is no engine 'plane'; did you mean plain? legal: torch (from rollart-hpc), "),
        ("engine.kind=plane", "plain (from plain-backends 0.1)"),
        ("engine.options.tokens_per_stop=2", "did you mean engine.options.tokens_per_step?"),
        ("engine.options.tokens_per_step=0", "engine.options.tokens_per_step: 0 is too small"),
        ("trainer.options.momentum=high", "trainer.options.momentum: 'high' is text, expected a number"),
        ("trainer.ranks=2", "trainer.ranks: 2 is not possible with trainer plain; set trainer.kind: fsdp or megatron"),
        ("trainer.lora.rank=4", "trainer.lora.rank: 4 is not possible with trainer plain; set trainer.kind: fsdp"),
        ("deterministic=true", "deterministic: true is not possible with engine plain"),
        ("weights.transport=direct", "weights.transport: direct is not possible with engine plain"),
        (
            "tasks.sorting.split=true",
            "tasks.sorting.split: true is not possible with engine plain; set engine.kind: vl",
        ),
        ("algorithm.kl=0.1", "algorithm.kl: trainer plain can't compute it"),
        ("engine.kv_slots=3", "warning: engine.kv_slots: has no effect with engine.kind: plain; remove it"),
    ],
)
def test_no_setting_is_silently_without_effect(site: Path, override: str, said: str) -> None:
    assert said in check(site, override)


def test_its_options_are_in_the_key_reference(site: Path) -> None:
    text = cli(site, "keys", "engine.options").stdout
    assert "engine.options.tokens_per_step = 4" in text and "with engine.kind: plain" in text


def test_the_page_shows_the_package_as_it_is() -> None:
    shown = dict(BLOCK.findall(PAGE.read_text()))
    files = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.*") if path.suffix != ".pyc"}
    assert shown == {name: text for name, text in files.items() if text}


def test_its_trainer_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PACKAGE)
    import torch
    from plain_backends.trainer import PlainTrainer

    from rollart_hpc.trainers.world import World
    from tests.trainers.plain import make_config, make_groups, make_model

    config = make_config(trainer__options__momentum=0.9)
    model, world = make_model(tmp_path / "model"), World(0, 1, torch.device("cpu"))
    one, other = (PlainTrainer(config, model, world) for _ in range(2))
    one.accumulate(make_groups(1))
    one.step()
    one.save(tmp_path / "saved")
    other.load(tmp_path / "saved")
    for trainer in (one, other):
        trainer.accumulate(make_groups(1))
    assert one.step() == other.step()
