"""What a full disk looks like to the user, whichever library met it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rollart_hpc import files
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.files import disk_errors, library_writes


def full(*_: object) -> bytes:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_a_library_makes_of_a_full_disk_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_free", lambda _: 2_000_000)
    strange = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")
    with pytest.raises(RuntimeError), library_writes(tmp_path):
        raise strange
    monkeypatch.setattr(os, "urandom", full)  # what is written as a test finds no place
    with pytest.raises(SiteError) as caught, library_writes(tmp_path / "new" / "file", 5_000_000):
        raise strange
    sizes = "5.0 MB were to be written, 2.0 MB were free, 3.0 MB are missing"
    assert caught.value.what == f"the disk is full: can't write {tmp_path}/new/file ({sizes})"
    assert caught.value.fix == "free some space, or choose another --run-dir"
    assert not list(tmp_path.iterdir())


def test_other_errors_pass(tmp_path: Path) -> None:
    for error in (UserError("mine"), KeyboardInterrupt(), ValueError("x")):
        with pytest.raises(type(error)), library_writes(tmp_path):
            raise error


def test_the_space_that_is_left_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_free", lambda _: 704)
    with pytest.raises(SiteError, match=r"No space left on device \(704 B free\)"), disk_errors(tmp_path):
        full()
