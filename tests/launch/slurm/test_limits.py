from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.load import load, load_site
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.limits import Limits, exceeded, waits
from rollart_hpc.launch.slurm.own_jobs import OwnJob, read_own_jobs

SITE = load_site("dev")
SITE.classes["h800"].gres = "nvidia_h800"
PLAN = make_plan(load("quickstart"), SITE)  # 120 minutes; cpu: 4 CPUs, 4 GB; h800: 2 GPUs; h20: 1 GPU
H800 = PLAN.components[1]


ROW: dict[str, Any] = {"Account": "rl", "Partition": "", "QOS": "q", "DefaultQOS": "q"}


def problems(qos: dict[str, str], others: list[OwnJob] | None = None, **association: str) -> list[str]:
    row = {**ROW, **association}
    limits = Limits([row], {"q": {"Name": "q", **qos}}, own_jobs=others or [])
    return list(exceeded(limits, row, "q", H800, PLAN, SITE))


def job(gpus: int, *, account: str = "rl", qos: str = "q", is_running: bool = True) -> OwnJob:
    return OwnJob(account, qos, is_running, 1, 4, {"nvidia_h800": gpus})


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
        ({"MaxWall": "01:00:00"}, "QOS q: jobs may take 60 min, this one requests 120; set job.time_minutes=60"),
        ({"MaxWall": "1-00:00:00"}, ""),
        ({"MaxSubmitPU": "2"}, "QOS q: allows 2 jobs at a time, this run has 3 components; use another QOS"),
        ({"MaxJobsPU": "2"}, "QOS q: 2 jobs may run at a time, this run has 3 components, and each counts"),
        ({"GrpJobs": "3", "GrpSubmit": "3"}, ""),
    ],
)
def test_limits_of_a_qos(qos: dict[str, str], said: str) -> None:
    found = problems(qos)
    assert [line[: len(said)] for line in found] == ([said] if said else [])


def test_limits_of_an_account() -> None:
    assert problems({}, MaxTRES="cpu=2")[0].startswith("account rl: cpu is limited to 2, this run needs 3")


def test_the_number_of_jobs_of_an_account_counts_components() -> None:
    assert problems({}, MaxJobs="3", MaxSubmit="3") == []
    (found,) = problems({}, MaxJobs="2")
    assert found.startswith("account rl: 2 jobs may run at a time, this run has 3 components")
    assert problems({}, MaxSubmit="2")[0].startswith("account rl: allows 2 jobs at a time")


def test_jobs_in_the_queue_leave_room_for_fewer() -> None:
    queue = [job(1), job(1, is_running=False), job(1, account="other", qos="other")]
    assert problems({"MaxSubmitPU": "5"}, queue) == []
    (found,) = problems({"MaxSubmitPU": "4"}, queue)
    assert found.startswith("QOS q: allows 4 jobs in the queue, you have 2, this run has 3 components; wait")


def test_limits_of_the_accounts_above_count() -> None:
    own, top = {"Account": "rl", "ParentName": "lab"}, {"Account": "lab", "ParentName": "root"}
    parents = {"rl": [own, {**top, "GrpTRES": "gres/gpu=2", "GrpJobs": "2"}]}
    found = list(exceeded(Limits([ROW], {}, parents=parents), ROW, "", H800, PLAN, SITE))
    assert [line.partition(";")[0] for line in found] == [
        "account lab: gres/gpu is limited to 2, this run needs 3",
        "account lab: 2 jobs may run at a time, this run has 3 components, and each counts",
    ]


def test_what_ones_own_running_jobs_take_is_waited_for() -> None:
    def waited(qos: dict[str, str], *others: OwnJob) -> list[str]:
        return list(waits(Limits([ROW], {"q": {"Name": "q", **qos}}, own_jobs=list(others)), ROW, "q", PLAN, SITE))

    busy = [job(4), job(2), job(9, is_running=False), job(9, qos="other")]
    assert waited({"MaxTRESPU": "gres/gpu=9"}, *busy) == []
    assert waited({"MaxTRESPU": "gres/gpu=8"}, *busy) == [
        "QOS q: gres/gpu is limited to 8, your running jobs have 6 of them"
    ]
    assert waited({"MaxTRESPU": "gres/gpu=2"}, *busy) == [], "it is refused, not waited for"
    assert waited({"MaxJobsPU": "4"}, *busy) == [
        "QOS q: 4 jobs may run at a time, 2 of yours do, this run has 3 components"
    ]


def test_jobs_are_read_from_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        "rl,q,RUNNING,2,8,gres:gpu:h800:4", "rl,q,PENDING,1,1,N/A", "rl,q,RUNNING,1,1,gres/gpu:2", "rl,q,RUNNING,,,",
    )  # fmt: skip
    lines = "".join(f"printf '{row}\\n' | tr ',' '\\037'\n" for row in rows)
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{lines}")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    first, second, third, last = read_own_jobs(Slurm(), "me")
    assert (first.amount("gres/gpu"), first.amount("gres/gpu:H800"), first.amount("cpu"), first.nodes) == (8, 8, 8, 2)
    assert (second.is_running, second.gpus, third.amount("gres/gpu"), last.gpus) == (False, {}, 2, {})


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
        '*"associations where user=me cluster=here"*) printf "a||q|q|||||||\\nb||q|q|||||||\\n" ;;\n'
        '*"where account=a cluster=here user="*) echo "a|lab|||" ;;\n'
        '*"where account=b cluster=here user="*) echo "b||cpu=8||" ;;\n'
        '*"where account=lab cluster=here user="*) echo "lab||gres/gpu=8||" ;;\n'
        '*"user where name=me"*) echo b ;;\n'
        '*qos*) echo "q||||||||" ;;\n'
        "*) exit 1 ;;\nesac\n"
    )
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "squeue").chmod(0o755)
    (tmp_path / "sacctmgr").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    limits = Limits.read(Slurm(), "me", "here")
    assert limits.accounts == ["a", "b"] and list(limits.qos) == ["q"]
    assert (limits.association("", "cpu") or {})["Account"] == "b"
    assert [row["GrpTRES"] for row in limits.parents["a"]] == ["", "gres/gpu=8"]
