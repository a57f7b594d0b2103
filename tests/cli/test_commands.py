"""The commands that look at a run directory, on directories made by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.cli.control import _new_proc
from rollart_hpc.cli.logs import LogReader
from rollart_hpc.cli.main import build_parser
from rollart_hpc.cli.run import _tell_end
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.config.schema import PoolConfig
from rollart_hpc.errors import UserError
from rollart_hpc.hardware import BANDWIDTH, COMPUTE
from rollart_hpc.launch.ownership import start_ticks
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

STATUS: dict[str, Any] = {
    "attempt": 1, "state": "running", "reason": "", "step": 7, "steps": 10, "tokens_per_s": 123.4, "progress": 5,
    "tasks": {"lake": {"score_first": 0.125, "score_last": 0.5, "validations": 2}},
    "staleness": {"bound": 1, "max_trained": 1, "histogram": {}},
    "workers": {"env": {"joined": 2, "lost": 1, "alive": 1}, "supervisor": {"joined": 1, "lost": 0, "alive": 1}},
    "dropped": {"stale": 3, "crashed": 0},
    "pools": {"compute": {"engines": 2, "kv_tokens": 2000, "kv_used_tokens": 500}, "bandwidth": {"kv_tokens": 0}},
}  # fmt: skip


def own(run: RunDir, state: str, pid: int = 0, reason: str = "") -> None:
    procs = {"controller": {"pid": pid, "incarnation": "x", "attempt": 1}}
    owner = {"pid": pid, "start_ticks": start_ticks(pid), "host": os.uname().nodename, "procs": procs, "attempt": 1}
    run.supervisor.write_text(json.dumps({**owner, "state": state, "reason": reason}))


def test_check_shows_the_plan(cli: Cli, run_file: Path) -> None:
    done = cli("check", run_file, "trainer.ranks=2", "reward.workers=0")
    assert done.returncode == 0 and "compute: engine-compute-0, trainer-0, trainer-1, relay-compute" in done.stdout
    assert "warning: reward.workers: 0" in done.stderr


def test_check_for_machines(cli: Cli, run_file: Path) -> None:
    good = cli("check", run_file, "--json", "steps=5")
    found = json.loads(good.stdout)
    assert found["good"] and found["config"]["steps"] == 5 and found["plan"][0]["name"] == "controller"
    assert set(found["tasks"]) == set(found["config"]["tasks"]), "each task, and what it would use"
    bad = cli("check", run_file, "--json", "stpes=5", "flow.alpha=-1")
    assert bad.returncode == 2 and len(json.loads(bad.stdout)["problems"]) == 2


def test_status_of_a_live_run(cli: Cli, run: RunDir) -> None:
    own(run, "running", os.getpid())
    run.status.write_text(json.dumps(STATUS))
    text = cli("status", run.path).stdout
    assert (
        "running, attempt 1" in text and "step 7/10 | lake (0.12 -> 0.50) | 123 tok/s | staleness 1/1 | env 1" in text
    )
    assert "\nKV use of pool compute: 500 of 2000 tokens (25%), 2 engines\n" in text and "bandwidth" not in text
    assert "dropped: stale 3\n" in text and "lost: env 1\n" in text
    failing = {"quarantined": False, "last_error": "env_error: E: my bug"}
    bad = {"quarantined": True, "quarantine_reason": "8 resets in a row failed", "last_error": "E"}
    run.status.write_text(json.dumps({**STATUS, "tasks": {"failing": failing, "bad": bad}}))
    text = cli("status", run.path).stdout
    assert "\nbad is quarantined: 8 resets in a row failed\nlast failure of failing: env_error: E: my bug\n" in text
    run.status.write_text(json.dumps(STATUS))
    found = json.loads(cli("status", run.path, "--json").stdout)
    assert found["state"] == "running" and found["run_dir"] == str(run.path)
    assert STATUS["tasks"]["lake"].items() <= found["tasks"]["lake"].items()


@pytest.mark.parametrize(
    ("owner", "state"), [(None, "preparing"), ("running", "killed"), ("failed", "failed"), ("drained", "drained")]
)
def test_the_state_is_that_of_the_supervisor(cli: Cli, run: RunDir, owner: str | None, state: str) -> None:
    run.status.write_text(json.dumps(STATUS))
    if owner:
        own(run, owner, reason="full disk" if owner == "failed" else "")
    found = json.loads(cli("status", run.path, "--json").stdout)
    assert found["state"] == state
    assert found["reason"] == ("full disk" if owner == "failed" else "")


def test_an_ended_run_has_no_workers_and_tells_its_last_attempt(cli: Cli, run: RunDir) -> None:
    own(run, "failed", reason="the trainer was killed; see its log")
    run.begin_attempt()
    run.begin_attempt(under=1)
    run.status.write_text(json.dumps({**STATUS, "validating": 7}))
    text = cli("status", run.path).stdout
    assert "failed, attempt 2: the trainer was killed; see its log\n" in text
    assert "step 7/10 | lake (0.12 -> 0.50) | 123 tok/s | staleness 1/1\n" in text
    found = json.loads(cli("status", run.path, "--json").stdout)
    assert found["validating"] is None and found["workers"]["env"] == {"joined": 2, "lost": 1, "alive": 0, "left": 0}


def test_the_last_lines_of_a_run_tell_how_it_ended(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """Not what a controller said that was killed meanwhile."""
    own(run, "drained")
    run.status.write_text(json.dumps(STATUS))
    assert _tell_end(run, RunState.DRAINED) == 5
    assert capsys.readouterr().out.startswith("drained after 7 of 10 steps\n")


def test_status_has_every_key_before_the_first_attempt(cli: Cli, run: RunDir) -> None:
    found = json.loads(cli("status", run.path, "--json").stdout)
    assert (found["state"], found["step"], found["policy_version"], found["attempt"]) == ("preparing", 0, 0, 0)
    assert {"score_first", "score_last", "trajectories", "pool_share"} <= set(found["tasks"]["lake"])
    assert found["staleness"] == {"bound": 1, "max_trained": 0, "histogram": {}} and found["dropped"] == {}
    assert found["workers"]["engine"] == {"joined": 0, "lost": 0, "alive": 0, "left": 0}
    assert {"transport", "transfers", "total_s", "exposed_s", "bytes"} <= set(found["weights"])
    assert found["weights"]["transport"] == "staged" and found["wait"] == {"get_batch_share": 0.0}
    assert "preparing, attempt 0" in cli("status", run.path).stdout


def test_an_engine_joins_only_where_weights_arrive(run: RunDir) -> None:
    config = read_resolved(run.config)
    config.pools = {COMPUTE: config.pools[COMPUTE], BANDWIDTH: PoolConfig(engines=0)}
    with pytest.raises(UserError, match="pool bandwidth has no relay") as refused:
        _new_proc("engine", BANDWIDTH, config, make_plan(config))
    assert refused.value.fix == "--pool compute"
    assert _new_proc("engine", COMPUTE, config, make_plan(config)).node == COMPUTE
    config.weights.transport = "direct"
    assert _new_proc("engine", BANDWIDTH, config, make_plan(config)).pool == BANDWIDTH
    for role, pool in (("engine", "gpu"), ("env", COMPUTE)):
        with pytest.raises(UserError, match="pool"):
            _new_proc(role, pool, config, make_plan(config))  # type: ignore[arg-type]


def test_status_without_a_directory_means_the_newest_run(cli: Cli, run_root: Path) -> None:
    assert cli("status").returncode == 2
    RunDir(run_root / "old").create()
    RunDir(run_root / "new").create()
    assert json.loads(cli("status", "--json").stdout)["run_dir"] == str(run_root / "new")


def test_status_of_all_runs_is_a_table(cli: Cli, run_root: Path) -> None:
    for number, state in enumerate(("finished", "failed")):
        one = RunDir(run_root / f"run {number}").create()
        own(one, state)
        one.status.write_text(json.dumps(STATUS))
    (run_root / "damaged").mkdir()
    (run_root / "damaged" / "run.json").write_text("{}")
    title, newest, oldest = cli("status", "--all").stdout.splitlines()
    assert title.split() == ["run", "state", "step", "scores", "jobs", "age"]
    assert "run 1" in newest and " failed " in newest and " 7/10  lake 0.50 " in newest and newest.endswith(" s")
    assert "run 0" in oldest and " finished " in oldest
    found = json.loads(cli("status", "--all", "--json").stdout)
    assert [one["state"] for one in found] == ["failed", "finished"]
    assert "1 older runs: rollart-hpc status --all" in cli("status").stdout
    assert cli("status", "--all", run_root / "run 0").returncode == 2


def test_following_ends_with_the_state_and_exit_code_of_the_run(cli: Cli, run: RunDir) -> None:
    """And not with what the controller said before it was killed."""
    own(run, "failed", reason="the trainer was killed")
    run.status.write_text(json.dumps({**STATUS, "updated": "now"}))
    done = cli("status", "-f", run.path)
    assert done.returncode == 3 and done.stdout.startswith("failed after 7 of 10 steps\n")
    assert "the trainer was killed" in done.stdout and f"rollart-hpc resume '{run.path}'" in done.stdout
    assert "run: failed: the trainer was killed" in done.stderr


def test_following_logs_shows_steps(run: RunDir) -> None:
    own(run, "running", os.getpid())
    run.begin_attempt()
    run.status.write_text(json.dumps(STATUS))
    command = [sys.executable, "-m", "rollart_hpc.cli", "logs", "-f", str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as logs:
        assert logs.stdout is not None
        run.log(1, "env-0").write_text("11-16 01:00:00.100 INFO env-0: first\n")
        assert "first" in logs.stdout.readline()
        step = {"kind": "step", "version": 8, "step_s": 1.5, "tokens_per_s": 10.0, "success": {"lake": 0.5}}
        run.metrics.write_text(json.dumps(step) + "\n")
        assert logs.stdout.readline().startswith("run                  step 8/10 in 1.5 s | lake 0.50 | 10 tok/s")
        own(run, "finished")
        assert logs.wait(120) == 0


def test_logs_are_merged_in_order_of_time(cli: Cli, run: RunDir) -> None:
    own(run, "failed")
    run.begin_attempt()
    run.log(1, "env-0").write_text(
        "11-16 01:00:00.100 INFO env-0: first\n11-16 01:00:02.000 ERROR env-0: third\nTraceback\n"
    )
    run.log(1, "engine-compute-0").write_text("11-16 01:00:01.000 INFO engine-compute-0: second\n")
    lines = [line.split(None, 1) for line in cli("logs", run.path, "-f").stdout.splitlines()]
    assert [name for name, _ in lines] == ["env-0", "engine-compute-0", "env-0", "env-0"]
    assert [text.split()[-1] for _, text in lines] == ["first", "second", "third", "Traceback"]
    assert cli("logs", run.path, "--role", "engine").stdout.count("\n") == 1
    wrong = cli("logs", run.path, "--role", "enigne")
    assert wrong.returncode == 2 and "its processes: engine-compute-0, env-0" in wrong.stderr


def test_a_log_that_moved_is_no_error(run: RunDir) -> None:
    """As that of a step that waited for its orders."""
    path = run.path / "engine-compute-0.log"
    path.write_text("11-16 01:00:00.100 INFO engine-compute-0: imported\n")
    reader = LogReader(path, "job")
    assert len(list(reader.new())) == 1
    path.rename(run.path / "elsewhere.log")
    assert list(reader.new()) == []


def test_a_reader_who_goes_away_is_no_error(run: RunDir) -> None:
    run.begin_attempt()
    run.log(1, "env-0").write_text("11-16 01:00:00.100 INFO env-0: line\n" * 5000)
    command = f"'{os.sys.executable}' -m rollart_hpc.cli logs '{run.path}' | head -1"  # type: ignore[attr-defined]
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == "" and done.stdout.count("\n") == 1


def test_overrides_may_stand_behind_options(cli: Cli, run_file: Path) -> None:
    done = cli("check", run_file, "steps=4", "--json", "seed=9")
    config = json.loads(done.stdout)["config"]
    assert (config["steps"], config["seed"]) == (4, 9)


def test_every_command_has_help() -> None:
    text = build_parser().format_help()
    for command in ("run", "check", "resume", "status", "logs", "cancel", "join", "report"):
        assert f"    {command}" in text
