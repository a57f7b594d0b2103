"""Transcripts as reward workers and trainer write them, read back: chosen, joined, and as a data frame."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.config.schema import ObserveConfig
from rollart_hpc.observe import ledger, transcripts
from rollart_hpc.observe.examples import examples, shown
from rollart_hpc.observe.plays import Facts, Name, Tokens, is_chosen, parsed, samples_of, spread
from rollart_hpc.observe.report import write_report
from rollart_hpc.observe.shards import shards
from rollart_hpc.observe.transcripts import Where, extremes, read, with_advantages
from rollart_hpc.rewards.recording import Recorder
from rollart_hpc.rundir import RunDir
from rollart_hpc.trainers import recording as of_the_trainer
from rollart_hpc.types import Sample, TokenRecord, TrainGroup
from rollart_hpc.wire.messages import Scored, ScoreWanted

ALL = ObserveConfig(transcripts=1.0, transcript_tokens=1.0)
RECORD = TokenRecord(
    np.array([7, 8, 9, 4, 5], np.int32),
    np.array([0, -0.5, -1.25, 0, -2], np.float32),
    np.array([-1, 3, 3, -1, 4], np.int32),
)


def write_play(recorder: Recorder, trajectory: str, reward: float = 0.0, task: str = "lake", issue: int = 0) -> None:
    ids, logprobs, versions = map(bytes, RECORD.to_frames())
    facts = Facts(5, 5, 3, 3, 4, lengths=[3, 2], ids=ids, logprobs=logprobs, versions=versions)
    transcript = {"task": task, "turns": [("wall", "up")], "outcome": {"fell": True}, "facts": facts}
    scored = Scored(trajectory, issue, reward, reward > 0.5, 0.25)
    recorder.scored(ScoreWanted(trajectory, issue, task), msgspec.msgpack.encode(transcript), scored)


def write_line(run: RunDir, step: int, *trajectories: str) -> None:
    line = ledger.Line(1, step, step + 1, f"w{step}", f"w{step + 1}", [7], list(trajectories), [step] * 2)
    with run.ledger.open("ab") as file:
        file.write(ledger.encode(line) + b"\n")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Two groups, of which one was trained, and a validation."""
    run = RunDir(tmp_path / "a run").create()
    recorder = Recorder(run, ALL, "reward-0-1a2b", attempt=1)
    for number, reward in enumerate((0.0, 1.0, 0.25, 0.5)):
        write_play(recorder, f"a1.g{7 + number // 2}.m{number % 2}", reward)
    write_play(recorder, "a1.v3.sorting.2", 0.75, "sorting")
    recorder.close()
    write_line(run, 4, "a1.g7.m0", "a1.g7.m1")
    return run


def names(run: RunDir, **where: object) -> list[str]:
    return [play.trajectory for play in read(run, Where(**where), pytest.fail)]


def test_a_line_says_everything(run: RunDir) -> None:
    play = next(read(run))
    assert (play.trajectory, play.task, play.purpose, play.attempt, play.group, play.member) == (
        "a1.g7.m0", "lake", "train", 1, 7, 0,
    )  # fmt: skip
    assert (play.step, play.seed, play.reward, play.success, play.stop, play.turns) == (4, 5, 0.0, False, "done", 1)
    assert (play.tokens, play.sampled_tokens, play.first_version, play.last_version) == (5, 3, 3, 4)
    assert play.messages == [{"role": "user", "content": "wall"}, {"role": "assistant", "content": "up"}]
    assert play.outcome == {"fell": True} and play.reward_s == 0.25 and play.scored_at > 1e9
    assert play.samples == [Tokens([7, 8, 9], [0.0, -0.5, -1.25], [-1, 3, 3]), Tokens([4, 5], [0.0, -2.0], [-1, 4])]


def test_what_is_chosen(run: RunDir) -> None:
    assert names(run) == ["a1.g7.m0", "a1.g7.m1", "a1.g8.m0", "a1.g8.m1", "a1.v3.sorting.2"]
    assert names(run, steps=(3, 4)) == ["a1.g7.m0", "a1.g7.m1", "a1.v3.sorting.2"]
    assert names(run, task="sorting") == names(run, purpose="validate") == ["a1.v3.sorting.2"]
    assert names(run, success=False, group=8) == ["a1.g8.m0", "a1.g8.m1"]
    assert names(run, reward=(0.2, 0.5)) == ["a1.g8.m0", "a1.g8.m1"]
    assert names(run, trajectory="a1.g7.m1") == ["a1.g7.m1"] and names(run, task="other") == []
    found = list(read(run))
    assert [play.reward for play in extremes(found, 2, best=True)] == [1.0, 0.75]
    assert [play.reward for play in extremes(found, 2, best=False)] == [0.0, 0.25]


def test_a_play_that_two_workers_scored_is_told_once(run: RunDir) -> None:
    other = Recorder(run, ALL, "reward-1-3c4d", attempt=1)
    write_play(other, "a1.g7.m0")
    write_play(other, "a1.g7.m0", issue=1)
    other.close()
    assert names(run, trajectory="a1.g7.m0") == ["a1.g7.m0"] * 2, "an issue is a play of its own"


def test_advantages_come_from_the_trainer(run: RunDir) -> None:
    recorder = of_the_trainer.Recorder(run, ALL, "trainer-0-5e6f", attempt=1)
    recorder.take([TrainGroup(1, "lake", [Sample("a1.g1.m0", 1, "lake", RECORD, 0.0)])], starts=True)
    group = TrainGroup(7, "lake")
    for member in range(2):  # the second sample begins with a sampled token, which nothing predicts
        for part, advantages in ((slice(0, 3), [0.5, -0.5]), (slice(3, 5), [1.0])):
            record = TokenRecord(RECORD.ids[part], RECORD.logprobs[part], RECORD.versions[part])
            sample = Sample(f"a1.g7.m{member}", 7, "lake", record, 0.0)
            group.samples.append(sample)
            sample.advantages = None if member else np.array(advantages, np.float32)
    recorder.take([group], starts=True)  # the step began again, without the first group
    recorder.trained(4)
    recorder.close()
    first, second, *others = with_advantages(run, read(run), pytest.fail)
    assert [tokens.advantages for tokens in first.samples] == [[0.0, 0.5, -0.5], [0.0, 1.0]]
    assert [tokens.advantages for tokens in second.samples] == [[0.0, 0.0, 0.0], [0.0, 0.0]]
    assert all(tokens.advantages is None for play in others for tokens in play.samples)
    (path,) = shards(run.transcripts, "advantages")
    assert "a1.g1.m0" not in "".join(map(str, transcripts.lines(path, pytest.fail)))


def test_rolled_back_steps_have_not_trained(run: RunDir) -> None:
    with run.ledger.open("ab") as file:
        file.write(ledger.encode(ledger.Restored(2, 3)) + b"\n")
    assert {play.step for play in read(run)} == {None}


def test_what_is_damaged_is_skipped_with_a_note(run: RunDir) -> None:
    good = shards(run.transcripts)[0]
    for name, content in (("torn", good.read_bytes()[:-20]), ("text", b"no gzip")):
        good.with_name(good.name.replace("reward-0-1a2b", name)).write_bytes(content)
    odd = Recorder(run, ALL, "reward-9-ffff", attempt=1)
    odd._shards.add(b'{"trajectory": 7}', 0)
    odd._shards.add(b"\xff", 0)
    odd.close()
    notes: list[str] = []
    assert len(list(read(run, None, notes.append))) == 5
    assert len(notes) == 4 and sum("damaged" in note for note in notes) == 2


def test_nothing_is_recorded_of_a_share_of_zero(run: RunDir) -> None:
    recorder = Recorder(run, ObserveConfig(transcripts=0.0), "reward-7-aaaa", attempt=1)
    write_play(recorder, "a1.g99.m0")
    recorder.close()
    assert names(run, trajectory="a1.g99.m0") == [] and not list(read(RunDir("/nowhere")))


def test_an_outcome_that_json_can_not_hold(run: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(run, ALL, "reward-8-bbbb", attempt=1)
    transcript = msgspec.msgpack.encode({"task": "lake", "turns": [], "outcome": {"x": msgspec.msgpack.Ext(5, b"")}})
    recorder.scored(ScoreWanted("a1.g50.m0", 0, "lake"), transcript, Scored("a1.g50.m0", 0, 0.0, False, 0.0))
    assert "can't record a1.g50.m0" in caplog.text


def test_pandas_reads_them_in_two_lines(run: RunDir) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: data frames are not tested")
    frame = pandas.DataFrame(transcripts.rows(run.path))
    assert list(frame.groupby("task").reward.mean().round(3)) == [0.438, 0.75] and frame.step.count() == 2
    files = [pandas.read_json(path, lines=True) for path in run.transcripts.glob("*.plays.*.jsonl.gz")]
    assert set(pandas.concat(files).trajectory) == set(frame.trajectory)


def test_json_lines_of_the_command_are_those_of_the_shards(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    from rollart_hpc.cli.main import main

    def call(*arguments: str) -> list[str]:
        assert main(["transcripts", str(run.path), *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    assert [json.loads(line)["step"] for line in call("--json")] == [4, 4, None, None, None]
    assert [json.loads(line)["reward"] for line in call("--json", "--best", "--limit", "2")] == [1.0, 0.75]
    text = call("--failed", "--step", "4")
    assert text[0] == "== a1.g7.m0  lake, seed 5: reward 0, failed" and text[-3:] == ["> wall", "< up", ""]
    assert "trained in step 4; 1 turns, 3 of 5 tokens sampled under versions 3 to 4" in text[1]
    assert main(["transcripts", str(run.path), "--step", "4..x"]) == 2
    assert call("--task", "other") == []


def test_the_report_shows_the_best_and_the_worst_of_each_task(run: RunDir) -> None:
    more = Recorder(run, ALL, "reward-2-cc", attempt=1)
    for number in range(10):
        write_play(more, f"a1.g{20 + number}.m0", number / 10, task="<lake>")
    more.close()
    found = [(play.task, play.reward) for play in examples(run)]
    assert found == [
        *(("<lake>", reward) for reward in (0.0, 0.1, 0.2, 0.7, 0.8, 0.9)),
        *(("lake", reward) for reward in (0.0, 0.25, 0.5, 1.0)), ("sorting", 0.75),
    ]  # fmt: skip
    text = write_report(run.path).read_text()
    assert text.count("<details>") == len(found) + 1 and "<lake>" not in text and "&lt;lake&gt;: reward 0.9" in text
    assert "lake: reward 0.25, failed (a1.g8.m0)" in text and "<pre>wall</pre>" in text


def test_a_report_without_transcripts(tmp_path: Path) -> None:
    assert examples(RunDir(tmp_path)) == [] and shown([]) == ""


# --- ids, shares, tokens -----------------------------------------------------------------------


def test_ids() -> None:
    assert parsed("a2.g31.m5") == Name("train", 2, 31, 5)
    assert parsed("a2.v4.my.task.7") == Name("validate", 2, None, 7, 4)
    assert parsed("other") == Name("train")


@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_groups_are_whole_and_shares_nested(group: int, one: float, other: float) -> None:
    small, large = sorted((one, other))
    members = {is_chosen(f"a1.g{group}.m{member}", small) for member in range(4)}
    assert len(members) == 1
    assert members <= {False} or is_chosen(f"a1.g{group}.m0", large)
    assert is_chosen(f"a1.g{group}.m0", 1.0) and not is_chosen(f"a1.g{group}.m0", 0.0)


def test_a_share_is_about_that_share() -> None:
    chosen = sum(is_chosen(f"a1.g{group}.m0", 0.05) for group in range(20_000))
    assert 800 < chosen < 1200


def test_a_first_sampled_token_has_no_advantage() -> None:
    assert spread(Tokens([1, 2, 3], [0.0] * 3, [4, 4, 4]), 0.5) == [0.0, 0.5, 0.5]
    assert spread(Tokens([1, 2, 3], [0.0] * 3, [4, 4, 4]), [0.5, 1.0]) == [0.0, 0.5, 1.0]


def test_without_tokens_there_are_no_samples() -> None:
    assert samples_of(Facts(num_tokens=5)) == []
