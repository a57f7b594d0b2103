from __future__ import annotations

import stat
from pathlib import Path

import pytest

from rollart_hpc.errors import SiteError
from rollart_hpc.wire.keys import load_client, load_server, make_keys


def test_files_are_private_and_belong_together(tmp_path: Path) -> None:
    directory = tmp_path / "keys" / "attempt_1"
    make_keys(directory)
    server, client = load_server(directory), load_client(directory, "env")
    assert client.server_public == server.public and server.roles[client.public] == "env"
    assert server.secret not in (directory / "env.key").read_text()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()} == {0o600}
    assert server.secret not in repr(server)


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    make_keys(tmp_path)
    with pytest.raises(FileExistsError):
        make_keys(tmp_path)


def test_missing_and_broken_files_are_site_errors(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="No such file"):
        load_client(tmp_path, "env")
    (tmp_path / "env.key").write_text("{")
    with pytest.raises(SiteError, match="not a key file"):
        load_client(tmp_path, "env")
