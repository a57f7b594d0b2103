"""Recorded events, fed to a fresh core, bring identical commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollart_hpc.cli.main import main
from rollart_hpc.errors import RollartError, SiteError, UserError
from rollart_hpc.flow.rules import FlowRules, TaskRules
from rollart_hpc.roles.recording import Recorder, replay
from rollart_hpc.simulate.world import Durations, Member, World
from tests.faults import controlled

CAST = {"trainer": "trainer", "relay-n0": "relay", "env-0": "env", "env-1": "env", "reward-0": "reward"}


def world(seed: int) -> World:
    tasks = {"a": TaskRules(1.0, ("compute",)), "b": TaskRules(2.0, auto=True)}
    rules = FlowRules(tasks, 4, 4, 2, redundancy=1, awaited=frozenset({"compute"}))
    members = [Member(name, role) for name, role in CAST.items()]
    members += [Member(f"e{i}", "engine", pool=pool) for i, pool in enumerate(("compute", "bandwidth"))]
    made = World(rules, members, seed, Durations(failure_rate=0.02))
    for member in members:
        made.after(made.random.uniform(0, 1), lambda name=member.name: made.start(name))
    made.after(5.0, lambda: made.kill("e0", 2.0))
    return made


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    made = world(1)
    recorder = Recorder(tmp_path / "r" / "events.rec", made.core)
    assert made.run(1000) == "finished"
    recorder.close()
    return tmp_path / "r" / "events.rec"


def test_a_simulated_run_with_failures_says_the_same_again(recorded: Path) -> None:
    found = replay(recorded)
    assert found.version == 4 and found.events > 400 and found.commands > 400 and not found.is_full


def test_another_rule_is_found_at_the_first_command_that_differs(recorded: Path) -> None:
    content = recorded.read_bytes()
    recorder = Recorder(recorded, world(2).core)  # only a head, of another seed of the run
    recorder.close()
    other = recorded.read_bytes()
    assert len(other) < len(content)
    from rollart_hpc.roles import recording

    head, *rest = list(recording._records(write(recorded, content)))
    changed = head.replace(b"\xabtemperature\xcb\x3f\xf0", b"\xabtemperature\xcb\x3f\xe0")
    assert changed != head
    with pytest.raises(SiteError, match=r"event \d+ \(.*temperature.*1\.0.*temperature.*0\.5") as caught:
        replay(write(recorded, frames(changed, *rest)))
    assert "the recording is of version" in str(caught.value)


def frames(*contents: bytes) -> bytes:
    from rollart_hpc.roles import recording

    packed = (recording._FRAME.pack(len(each), recording.zlib.crc32(each)) + each for each in contents)
    return b"rollart-hpc recording 1\n" + b"".join(packed)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("spoil", "kind", "expected"),
    [
        (lambda c: c[:-3], SiteError, r"is torn: record \d+ is cut off or damaged"),
        (lambda c: c[:-40] + b"x" + c[-39:], SiteError, r"is torn: record \d+ is cut off"),
        (lambda c: c[:30], SiteError, "is torn: record 0"),
        (lambda c: c.split(b"\n")[0] + b"\n", SiteError, "it has no head"),
        (lambda c: b"", UserError, "is not a recording"),
        (lambda c: b"kind: step\n", UserError, "is not a recording"),
        (lambda c: c.replace(b"recording 1", b"recording 7"), UserError, "has format 7, and this is 1"),
    ],
)
def test_torn_and_foreign_files(recorded: Path, spoil, kind: type[RollartError], expected: str) -> None:
    write(recorded, spoil(recorded.read_bytes()))
    with pytest.raises(kind, match=expected):
        replay(recorded)


def test_a_limit_ends_the_recording_and_not_the_run(tmp_path: Path) -> None:
    made = world(1)
    recorder = Recorder(tmp_path / "events.rec", made.core, limit=20_000)
    assert made.run(1000) == "finished"
    recorder.close()
    found = replay(tmp_path / "events.rec")
    assert found.is_full and found.events > 10 and (tmp_path / "events.rec").stat().st_size < 21_000


def test_the_controller_records_every_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    make = controlled.make_config

    def config(rng):
        made = make(rng)
        made.observe.record_bytes, made.steps, made.checkpoint.every = 1 << 24, 4, 1
        return made

    monkeypatch.setattr(controlled, "make_config", config)
    run = controlled.Controlled(tmp_path / "run", 3)
    run.after(2.0, run.restart_controller)
    assert run.run(2000) == "finished"
    run.controller._recorder.close()
    for attempt in (1, 2):
        assert main(["replay", str(tmp_path / "run"), "--attempt", str(attempt)]) == 0
    assert "identical commands, up to version 4" in capsys.readouterr().out
