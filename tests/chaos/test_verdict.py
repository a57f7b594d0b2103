"""When the verdict of chaos is bad, and which checkpoints it may damage."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rollart_hpc.chaos.acts import Act, Kind, Victim
from rollart_hpc.chaos.crew import Sight, Wound
from rollart_hpc.chaos.damage import Damage
from rollart_hpc.chaos.hands import Refusal
from rollart_hpc.chaos.verdict import Healing, find_problems
from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.schema import FlowConfig, RunConfig
from rollart_hpc.launch.status import RunStatus
from rollart_hpc.observe.ledger import Line
from rollart_hpc.observe.status import WorkerStatus
from rollart_hpc.rundir import COMMITTED, RunDir
from rollart_hpc.vocabulary import RunState

ENV = Victim("env-0", "env", "cpu", "", 7, "old")
KILL = Act(Kind.KILL, ENV)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "a run").create()
    write_resolved(run.config, RunConfig(steps=3, flow=FlowConfig(groups_per_step=1, group_size=2)))
    return run


def write(run: RunDir, *versions: int, twice: bool = False) -> None:
    names = [["a"] * 2 if twice else [f"t{v}-0", f"t{v}-1"] for v in versions]
    lines = [Line(1, v - 1, v, f"d{v - 1}", f"d{v}", [v], n, [v - 1] * 2) for v, n in zip(versions, names)]
    run.ledger.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def problems(run: RunDir, state: RunState, *healings: Healing, is_interrupted: bool = False) -> list[str]:
    return find_problems(run, Sight(RunStatus(state=state), [], True), healings, is_interrupted=is_interrupted)


def test_a_good_end(run):
    write(run, 1, 2, 3)
    assert problems(run, RunState.FINISHED, Healing(KILL, None)) == []
    assert problems(run, RunState.RUNNING, Healing(KILL, 1.0)) == []
    assert problems(run, RunState.RUNNING, is_interrupted=True) == []


def test_bad_ends(run):
    assert "nothing was hit" in problems(run, RunState.RUNNING)
    assert "not recovered" in problems(run, RunState.RUNNING, Healing(KILL, None))[0]
    write(run, 1, 2)
    assert "with 2 steps, expected 3" in problems(run, RunState.FINISHED, Healing(KILL, 1.0))[0]
    assert "the run is failed" in problems(run, RunState.FAILED, Healing(KILL, 1.0))[0]
    write(run, 1, 3)
    assert any("follows" in problem for problem in problems(run, RunState.RUNNING, Healing(KILL, 1.0)))
    write(run, 1, twice=True)
    assert "a trained 2 times" in problems(run, RunState.RUNNING, Healing(KILL, 1.0))[0]


def sight(incarnation: str, progress: int, joined: int, is_strong: bool = True) -> Sight:
    status = RunStatus(progress=progress, attempt=1, workers={"env": WorkerStatus(joined=joined)})
    return Sight(status, [msgspec.structs.replace(ENV, incarnation=incarnation)], is_strong)


def test_recovered_means_replaced_strong_and_going_on():
    wound = Wound(1, KILL, 0.0, sight("old", 5, 1))
    assert not wound.is_healed(60.0, sight("old", 6, 1))
    assert not wound.is_healed(60.0, sight("new", 6, 1))  # a status from before the loss
    assert not wound.is_healed(60.0, sight("new", 6, 2, is_strong=False))
    assert not wound.is_healed(60.0, sight("new", 5, 2))
    assert wound.is_healed(60.0, sight("new", 6, 2))
    stopped = Wound(1, Act(Kind.STOP, ENV, 5.0), 0.0, sight("old", 5, 1))
    assert not stopped.is_healed(4.0, sight("old", 6, 1))
    assert stopped.is_healed(9.0, sight("old", 6, 1)) and stopped.is_healed(4.0, sight("new", 6, 2))


def test_the_last_good_checkpoint_is_never_damaged(run):
    def commit(step: int) -> Path:
        run.checkpoint(step).mkdir()
        (run.checkpoint(step) / "weights").write_bytes(bytes(1000))
        (run.checkpoint(step) / COMMITTED).write_text("{}")
        return run.checkpoint(step) / "weights"

    damage, first = Damage(run), commit(1)
    with pytest.raises(Refusal):
        damage.do(0.5)
    second = commit(2)
    assert "step_2/weights" in damage.do(0.5)
    assert second.read_bytes() != bytes(1000) == first.read_bytes()
    assert not damage.can_do()
    commit(3)
    assert damage.can_do()
