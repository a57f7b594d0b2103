"""The files of a development cluster, before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rollart_hpc.devcluster.cluster import up
from rollart_hpc.devcluster.layout import make_files, write_configuration
from rollart_hpc.devcluster.topology import read_topology
from rollart_hpc.devcluster.users import closed_gate
from rollart_hpc.errors import SiteError, UserError


@pytest.fixture
def directory(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("c") / "d"


@pytest.mark.parametrize("accounting", [False, True])
def test_the_configuration_is_complete(directory: Path, accounting: bool) -> None:
    topology = read_topology()
    files = make_files(directory, topology.nodes)
    write_configuration(files, topology, accounting=accounting)
    text = files.conf.read_text()
    assert "$" not in text and all(f"NodeName={node.name} " in text for node in topology.nodes)
    assert "PartitionName=h800 Nodes=h800n[1-2] MaxTime=12:00:00\n" in text
    assert (directory / "slurmdbd.conf").exists() == accounting
    assert "Type=h20 File=" in (directory / "gres.conf").read_text()


def test_others_pass_through_but_read_nothing_private(directory: Path) -> None:
    files = make_files(directory, read_topology().nodes)
    assert [path.stat().st_mode & 0o777 for path in (files.path, files.private)] == [0o711, 0o700]


def test_a_foreign_directory_is_refused(directory: Path) -> None:
    directory.mkdir()
    (directory / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="not empty"):
        make_files(directory, [])
    (directory / "thesis.tex").unlink()
    directory.chmod(0o777)
    with pytest.raises(UserError, match="not a private directory"):
        make_files(directory, [])
    link = directory.with_name("link")
    link.symlink_to(directory)
    with pytest.raises(UserError, match="not a private directory"):
        make_files(link, [])


def test_a_path_that_slurm_or_a_socket_can_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="letters, digits"):
        make_files(Path("/tmp/a b"), [])
    with pytest.raises(UserError, match="shorter --dir"):
        make_files(tmp_path / ("x" * 100), [])


def test_the_outermost_closed_directory_is_found(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "deep"
    inner.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    gate = closed_gate(inner)
    assert gate is not None and not gate.stat().st_mode & 0o001
    assert closed_gate(Path("/usr/bin")) is None


def test_it_starts_before_anything_is_installed() -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-S", "-m", "rollart_hpc.devcluster", "--help"]  # -S: the standard library alone
    done = subprocess.run(command, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False, cwd="/")
    assert (done.returncode, done.stderr) == (0, "") and "a session:" in done.stdout


def test_without_root_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SiteError, match="needs root"):
        up(directory)
    assert not directory.exists()


def test_without_apt_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(SiteError, match="without apt-get"):
        up(directory)
