"""Forks: the chain of steps goes through several runs, and is verified across them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rollart_hpc.observe import ledger, lineage
from rollart_hpc.observe.ledger import Forked, Line, Restored
from rollart_hpc.rundir import RunDir
from tests.observe.test_ledger import line


def made(path: Path, *entries: ledger.Entry) -> RunDir:
    run = RunDir(path).create()
    run.ledger.write_bytes(b"".join(ledger.encode(entry) + b"\n" for entry in entries))
    return run


def forked(source: RunDir, version: int, digest: str | None = None) -> Forked:
    return Forked(0, version, f"w{version}" if digest is None else digest, source.run_id, str(source.path))


def own(version: int, **changes) -> Line:
    """A step of a fork: groups that the other run has not opened."""
    groups = [100 + version]
    names = [f"a1.g{groups[0]}.m{i}" for i in range(2)]
    return msgspec.structs.replace(line(version), groups=groups, trajectories=names, **changes)


def test_a_fork_continues_the_chain_of_the_other_run(tmp_path):
    first = made(tmp_path / "first", line(1), line(2), line(3), line(4))
    fork = made(tmp_path / "fork", forked(first, 2), Restored(1, 2), own(3), own(4))
    again = made(tmp_path / "again", forked(fork, 4), own(5))
    assert not lineage.problems(first) and not lineage.problems(fork) and not lineage.problems(again)
    assert [began.forked for began in lineage.ancestors(again)] == [4, 2]
    assert not ledger.check(fork.ledger, group_size=2, alpha=1)
    assert [one.version for one in ledger.surviving(ledger.entries(fork.ledger))] == [3, 4]


def test_a_fork_of_a_fork_that_made_no_step(tmp_path):
    first = made(tmp_path / "first", line(1), line(2))
    fork = made(tmp_path / "fork", forked(first, 2))
    again = made(tmp_path / "again", forked(fork, 2), own(3))
    assert not lineage.problems(again)
    assert lineage.digest_of(fork.ledger, 2, attempt=9) == "w2"


def test_weights_that_the_other_run_rolled_back_later(tmp_path):
    void = line(2, digest="gone")
    first = made(tmp_path / "first", line(1), void, Restored(2, 1), line(2, attempt=2), line(3, attempt=2))
    assert lineage.digest_of(first.ledger, 2, attempt=1) == "gone"
    fork = made(tmp_path / "fork", forked(first, 2, "gone"), own(3, parent_digest="gone"))
    assert not lineage.problems(fork)


def test_the_base_model_has_no_digest_in_a_ledger(tmp_path):
    first = made(tmp_path / "first", line(1))
    assert lineage.digest_of(first.ledger, 0, attempt=1) == ""
    assert not lineage.problems(made(tmp_path / "fork", forked(first, 0, ""), own(1)))


@pytest.mark.parametrize(
    ("began", "step", "said"),
    [
        ({}, own(3, parent_digest="other"), "its parent is not the weights of version 2"),
        ({}, own(4), "version 4 follows version 2"),
        ({}, line(3, trajectories=["a1.g0.m0", "a1.g0.m1"]), "a1.g0.m0 trained 2 times, again in step 2"),
        ({"digest": "other"}, own(3, parent_digest="other"), "has no version 2 with digest other"),
        ({"run": "another"}, own(3), "not the run another that was forked"),
        ({"path": "/nowhere"}, own(3), "can't be verified"),
    ],
)
def test_what_does_not_fit_is_found(tmp_path, began, step, said):
    first = made(tmp_path / "first", line(1), line(2))
    fork = made(tmp_path / "fork", msgspec.structs.replace(forked(first, 2), **began), step)
    assert any(said in problem for problem in lineage.problems(fork)), lineage.problems(fork)


def test_the_first_step_of_a_fork_is_checked_without_the_other_run(tmp_path):
    first = made(tmp_path / "first", line(1), line(2))
    fork = made(tmp_path / "fork", forked(first, 2), own(3, parent_digest="other"))
    expected = ["step 2: its parent is not the weights of version 2"]
    assert ledger.check(fork.ledger, group_size=2, alpha=1) == expected
    assert ledger.problems(ledger.entries(fork.ledger), group_size=2, alpha=1) == expected
