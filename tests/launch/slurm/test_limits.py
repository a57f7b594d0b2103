from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.load import load, load_site
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.limits import Limits, exceeded

SITE = load_site("dev")
SITE.classes["h800"].gres = "nvidia_h800"
PLAN = make_plan(load("quickstart"), SITE)  # 120 minutes; cpu: 4 CPUs, 4 GB; h800: 2 GPUs; h20: 1 GPU
H800 = PLAN.components[1]


def problems(qos: dict[str, str], **association: str) -> list[str]:
    row: dict[str, Any] = {"Account": "rl", "Partition": "", "QOS": "q", "DefaultQOS": "q", **association}
    limits = Limits([row], {"q": {"Name": "q", **qos}})
    return list(exceeded(limits, row, "q", H800, PLAN, SITE))


@pytest.mark.parametrize(
    ("qos", "said"),
    [
        ({"MaxTRES": "gres/gpu=1,cpu=100"}, "QOS q: gres/gpu is limited to 1, this run needs 2"),
        ({"MaxTRES": "gres/gpu=2"}, ""),
        ({"MaxTRES": "gres/gpu:nvidia_h800=1"}, "QOS q: gres/gpu:nvidia_h800 is limited to 1, this run needs 2"),
        ({"MaxTRES": "gres/gpu:h800=1"}, ""),  # other GPUs: it is the class that is called h800
        ({"MaxTRESPU": "gres/gpu=2"}, "QOS q: gres/gpu is limited to 2, this run needs 3"),
        ({"GrpTRES": "node=2"}, "QOS q: node is limited to 2, this run needs 3"),
        ({"GrpTRES": "mem=8G"}, "QOS q: mem is limited to 8G, this run needs 12"),
        ({"GrpTRES": "mem=12000M"}, "QOS q: mem is limited to 12000M, this run needs 12"),
        ({"GrpTRES": "license/x=1"}, ""),
        ({"MaxWall": "00:30:00"}, "QOS q: jobs may take 30 min, this one requests 60; set job.time_minutes=30"),
        ({"MaxWall": "1-00:00:00"}, ""),
        ({"MaxSubmitPU": "2"}, "QOS q: allows 2 jobs at a time, this run has 3 components; use another QOS"),
    ],
)
def test_limits_of_a_qos(qos: dict[str, str], said: str) -> None:
    found = problems(qos)
    assert [line[: len(said)] for line in found] == ([said] if said else [])


def test_limits_of_an_account() -> None:
    assert problems({}, MaxTRES="cpu=2")[0].startswith("account rl: cpu is limited to 2, this run needs 3")


def test_the_association_that_counts() -> None:
    rows = [{"Account": "a", "Partition": ""}, {"Account": "b", "Partition": "h20"}, {"Account": "b", "Partition": ""}]
    limits = Limits(rows, {})
    assert limits.accounts == ["a", "b"]
    assert limits.association("", "cpu") == rows[0] and limits.association("b", "h20") == rows[1]
    assert limits.association("b", "cpu") == rows[2] and limits.association("c", "cpu") is None
    limits = Limits(rows, {}, default_account="b")
    assert limits.association("", "cpu") == rows[2] and limits.association("a", "cpu") == rows[0]
    assert Limits(rows, {}, default_account="elsewhere").association("", "cpu") == rows[0]


def test_they_are_those_of_this_cluster_and_of_the_default_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sacctmgr").write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '*"associations where user=me cluster=here"*) printf "a||q|q||||\\nb||q|q||||\\n" ;;\n'
        '*"user where name=me"*) echo b ;;\n'
        '*qos*) echo "q|||||" ;;\n'
        "*) exit 1 ;;\nesac\n"
    )
    (tmp_path / "sacctmgr").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    limits = Limits.read(Slurm(), "me", "here")
    assert limits.accounts == ["a", "b"] and list(limits.qos) == ["q"]
    assert (limits.association("", "cpu") or {})["Account"] == "b"
