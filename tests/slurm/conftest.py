"""A real Slurm for tests: one development cluster for all of them, also across pytest's workers.

- `cluster`: the shared one, with the ordinary users alice and bob; SLURM_CONF points to it. Leave its nodes, daemons
  and other people's jobs alone, and end your own jobs.
- `accounting_cluster`: another shared one, with sacct, associations and limits.
- `own_cluster`: one for this test alone (some seconds), for tests that break nodes or daemons.
- `own_mixed_cluster`: the same with the layout `mixed`, which has a partition whose jobs may be preempted.

Every test here is slow. Without root on Debian or Ubuntu all are skipped, with the reason.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from rollart_hpc.devcluster import cluster as clusters
from rollart_hpc.devcluster.cluster import Cluster
from rollart_hpc.devcluster.packages import install, why_not
from rollart_hpc.devcluster.topology import DEFAULT
from rollart_hpc.errors import SiteError

HERE = Path(__file__).parent
TEMPORARY = Path(tempfile.gettempdir())
PREFIX = "rollart-test-"
USERS = ("alice", "bob")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)


def need_slurm(*, accounting: bool = False) -> None:
    """Skip, loudly, where there can be no cluster."""
    reason = why_not()
    try:
        if not reason:
            install(accounting=accounting)
    except SiteError as error:
        reason = str(error)
    if reason:
        pytest.skip(f"no real Slurm here: {reason}")


@pytest.fixture(scope="session")
def shared_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with one_cluster(f"{PREFIX}{run_id(request)}") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_accounting_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with one_cluster(f"{PREFIX}{run_id(request)}-a", accounting=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return use(shared_cluster, monkeypatch)


@pytest.fixture
def accounting_cluster(shared_accounting_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return use(shared_accounting_cluster, monkeypatch)


@pytest.fixture
def own_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with one_cluster(f"{PREFIX}{secrets.token_hex(6)}") as cluster:
        yield use(cluster, monkeypatch)


@pytest.fixture
def own_mixed_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with one_cluster(f"{PREFIX}{secrets.token_hex(6)}", layout_name="mixed") as cluster:
        yield use(cluster, monkeypatch)


def use(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("SLURM_CONF", str(cluster.files.conf))
    return cluster


def run_id(request: pytest.FixtureRequest) -> str:
    """The same in all workers of one run of pytest."""
    run: str = getattr(request.config, "workerinput", {}).get("testrunuid", f"{os.getpid()}")
    return run[:12]


@contextmanager
def one_cluster(name: str, *, accounting: bool = False, layout_name: str = DEFAULT) -> Iterator[Cluster]:
    """Up with the first worker that needs it, down with the last one that does."""
    need_slurm(accounting=accounting)
    end_forgotten()
    with home_of(name) as home:
        with locked(home / "lock"):
            up = clusters.find(home / "c")
            cluster = up or clusters.up(home / "c", user_names=USERS, accounting=accounting, layout_name=layout_name)
        yield cluster


@contextmanager
def home_of(name: str) -> Iterator[Path]:
    """The directory of a test cluster. Who uses it holds a shared lock on its file `users`; the last one ends it."""
    home = TEMPORARY / name
    with locked(TEMPORARY / f"{PREFIX}lock"):
        home.mkdir(exist_ok=True)
        home.chmod(0o711)  # whatever the umask
        users = open(home / "users", "w")  # noqa: SIM115
        fcntl.flock(users, fcntl.LOCK_SH)
    try:
        yield home
    finally:
        with locked(TEMPORARY / f"{PREFIX}lock"), users:
            end_unless_used(home, users)


def end_forgotten() -> None:
    """End clusters of test runs that were killed: nobody holds their locks."""
    with locked(TEMPORARY / f"{PREFIX}lock"):
        for path in TEMPORARY.glob(f"{PREFIX}*/users"):
            with open(path) as users:
                end_unless_used(path.parent, users)


def end_unless_used(home: Path, users: IO[str]) -> None:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    cluster = clusters.find(home / "c")
    if cluster:
        cluster.down()
    shutil.rmtree(home)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with open(handle) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
