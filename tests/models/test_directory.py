from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.models.directory import made_whole


def test_it_appears_in_one_move(tmp_path: Path) -> None:
    target = tmp_path / "new" / "model"
    with made_whole(target, 1) as scratch:
        (scratch / "model").mkdir()
        (scratch / "model" / "config.json").write_text("{}")
        (scratch / "wheel").write_text("")
        assert not target.exists()
    assert [path.name for path in target.parent.rglob("*")] == ["model", "config.json"]


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), made_whole(tmp_path / "model", 1) as scratch:
        (scratch / "model").mkdir()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_what_exists_is_not_touched(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    with pytest.raises(UserError, match="already exists"), made_whole(target, 1):
        pass
    target.rmdir()
    with pytest.raises(UserError, match="already exists"), made_whole(target, 1) as scratch:
        (scratch / "model").mkdir()
        target.mkdir()
        (target / "thesis.tex").write_text("years of work")
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "thesis.tex"]


def test_too_little_space_is_told_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 << 20))
        with pytest.raises(SiteError, match="has 5 MB free, the model needs 7 MB"), made_whole(tmp_path / "m", 7 << 20):
            pass
    full = os.strerror(errno.ENOSPC)
    for error in (OSError(errno.ENOSPC, full), RuntimeError(f"I/O error: {full} (os error 28)")):
        with pytest.raises(SiteError, match=f"{full}|the disk is full"), made_whole(tmp_path / "m", 1):
            raise error
    assert not list(tmp_path.iterdir())
