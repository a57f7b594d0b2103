"""Ordinary users of a development cluster, and the paths they must be able to reach.

Both exist only inside the cluster's mount namespace. A user is a line in the cluster's own /etc/passwd. A directory
below a closed one (e.g. an interpreter in /root) is mounted below a stand-in for the closed one, through which users
reach that directory and nothing else. Nothing outside the cluster's directory changes.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollart_hpc.devcluster.layout import ClusterFiles
from rollart_hpc.errors import UserError

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")
_IDS = range(20000, 60000)
Run = Callable[..., None]  # runs a command inside the namespaces


@dataclass(frozen=True)
class User:
    name: str
    uid: int
    gid: int
    home: Path


def make_users(files: ClusterFiles, names: Sequence[str], run: Run) -> list[User]:
    """Existing users of the machine are used as they are; others are made for this cluster only."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    free = (uid for uid in _IDS if uid not in taken)
    users, passwd, group = [], Path("/etc/passwd").read_text(), Path("/etc/group").read_text()
    for name in names:
        if not _NAME.fullmatch(name):
            raise UserError(f"--user {name!r} is not a valid user name", "use lowercase letters, digits, '_' and '-'")
        try:
            known = pwd.getpwnam(name)
            users.append(User(name, known.pw_uid, known.pw_gid, Path(known.pw_dir)))
        except KeyError:
            user = User(name, uid := next(free), uid, files.homes / name)
            users.append(user)
            passwd += f"{name}:x:{uid}:{uid}::{user.home}:/bin/bash\n"
            group += f"{name}:x:{uid}:\n"
            user.home.mkdir(mode=0o700)
            os.chown(user.home, uid, uid)
    for file, text in (("passwd", passwd), ("group", group)):
        ours = files.path / file
        ours.write_text(text)
        ours.chmod(0o644)
        run("mount", "--bind", str(ours), f"/etc/{file}")
    return users


def python_paths() -> list[Path]:
    """The paths that an ordinary user must reach to run this Python with this package."""
    package = Path(__file__).resolve().parents[2]
    prefixes = (Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent, package)
    return list(dict.fromkeys(path.resolve() for path in prefixes))


def expose(files: ClusterFiles, paths: Sequence[Path], run: Run) -> list[Path]:
    """Let ordinary users of the cluster reach `paths` below closed directories. Returns the paths that needed it."""
    closed = {path: gate for path in paths if (gate := closed_gate(path)) is not None}
    holding = files.private / "exposed"
    for i, path in enumerate(closed):
        (holding / str(i)).mkdir(parents=True)
        run("mount", "--bind", str(path), str(holding / str(i)))
    for gate in dict.fromkeys(closed.values()):
        run("mount", "-t", "tmpfs", "-o", "mode=0711,size=1m", "tmpfs", str(gate))
    for i, path in enumerate(closed):
        run("mkdir", "-p", "-m", "0711", str(path))
        run("mount", "--bind", str(holding / str(i)), str(path))
    return list(closed)


def closed_gate(path: Path) -> Path | None:
    """The outermost directory above `path` that other users can't pass; None if they can reach `path`."""
    return next((p for p in reversed(path.parents) if not p.stat().st_mode & 0o001), None)
