"""Site files of a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollart_hpc.cli.main import main
from rollart_hpc.devcluster.cluster import Cluster


def test_a_site_file_of_the_live_cluster_is_right_about_it(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config home"))
    assert main(["site", "init"]) == 0
    path = tmp_path / "config home" / "rollart-hpc" / "sites" / "rollartdev.yaml"
    assert str(path) in capsys.readouterr().out
    text = path.read_text()
    assert "serves: {cpu: cpu, compute: h800, bandwidth: h20}" in text
    assert main(["site", "check", "rollartdev", "--json"]) == 0
    assert {one["level"] for one in json.loads(capsys.readouterr().out)} == {"ok"}
    assert main(["site", "init"]) == 2
    assert "already exists" in capsys.readouterr().err

    path.write_text(text.replace("partition: h800", "partition: h80").replace("cpus: 16", "cpus: 512"))
    assert main(["site", "check", "rollartdev"]) == 2
    shown = capsys.readouterr().out
    assert "h800? partitions:" in shown and "classes.cpu.cpus: 16" in shown


@pytest.mark.parametrize("site", ["dev", "single"])
def test_the_packaged_sites_of_the_development_cluster_fit_it(
    cluster: Cluster, site: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", "check", site]) == 0, capsys.readouterr().out
