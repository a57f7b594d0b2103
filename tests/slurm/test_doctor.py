"""`rollart-hpc doctor` on a real cluster: what is right, and what is wrong on purpose."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.cli.main import main
from rollart_hpc.devcluster.cluster import Cluster

LIMIT_S = 300


def by_check(text: str) -> dict[str, dict[str, Any]]:
    """The worst of each check."""
    order = ("ok", "note", "warn", "fail")
    return {one["check"]: one for one in sorted(json.loads(text), key=lambda one: order.index(one["level"]))}


def test_an_ordinary_user_learns_that_runs_would_work(cluster: Cluster) -> None:
    done = cluster.run(sys.executable, "-m", "rollart_hpc.cli", "doctor", "--site", "dev", "--json", user="alice",
                       limit_s=LIMIT_S)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "submitting one job" in done.stderr and "cpu (cpu), h800 (h800), h20 (h20)" in done.stderr
    found = by_check(done.stdout)
    everywhere = ("python", "shared file system", "nofile", "memlock", "control port", "data interface", "caches")
    checks = {f"{name}: {check}" for name in ("cpu", "h800", "h20") for check in everywhere}
    checks |= {"commands", "munge", "backfill", "limits", "disk", "control interface", "h800: gres", "h20: gres"}
    assert checks <= set(found)
    assert {one["level"] for one in found.values()} <= {"ok", "warn"}
    assert cluster.run("ls", "-A", "runs", user="alice").stdout == ""  # nothing is left


def test_what_is_wrong_on_a_node_comes_with_a_fix(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "odd site.yaml"
    site.write_text(
        "base: dev\nclasses: {h20: {python: /no/such/python}}\nnetwork: {control: lo, data: nosuch0}\n"
        f"run_root: '{tmp_path}/run root'\n"
    )
    assert main(["doctor", "--site", str(site), "--json"]) == 3
    found = by_check(capsys.readouterr().out)
    assert {check for check, one in found.items() if one["level"] == "fail"} == {
        "cpu: data interface", "h800: data interface", "h20: python"
    }  # fmt: skip
    assert "interpreter" in found["h20: python"]["fix"]
    assert "network.data" in found["h800: data interface"]["fix"]


def test_a_run_root_that_nodes_do_not_share_is_found(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLART_RUN_ROOT", str(tmp_path))
    assert cluster.run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)).returncode == 0  # on its nodes
    assert main(["doctor", "--site", "single"]) == 3
    assert "directory that this host and all nodes share" in capsys.readouterr().out


def test_nothing_is_submitted_when_the_site_file_is_wrong(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "wrong.yaml"
    site.write_text("base: dev\nclasses: {h20: {gres: h200}}\n")
    assert main(["doctor", "--site", str(site)]) == 3
    shown = capsys.readouterr()
    assert "correct classes.h20.gres" in shown.out and "no job was submitted" in shown.err


def test_limits_are_shown_where_they_are_enforced(
    accounting_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    done = accounting_cluster.run(
        sys.executable, "-m", "rollart_hpc.cli", "doctor", "--site", "dev", "--no-jobs", user="alice", limit_s=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = re.search(r"limits: accounts: dev; QOS: (.*)", done.stdout)  # other tests give her further ones
    assert shown is not None and "normal" in shown[1].split(", "), done.stdout
