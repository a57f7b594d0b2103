"""What is done with the results of a run that has finished: its model exported, evaluated, and forked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rollart_hpc.observe import ledger, lineage
from rollart_hpc.observe.transcripts import Where, read, with_advantages
from rollart_hpc.rundir import RunDir


def call(*arguments: object) -> str:
    command = [sys.executable, "-m", "rollart_hpc.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_export(run: Any) -> Path:
    """Of the last step, with the digest that the ledger has. Plain transformers loads it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = run.directory.parent / "exported"
    told = json.loads(call("export", run.directory, target, "--json"))
    last = ledger.read(run.directory / "ledger.jsonl")[-1]
    assert (told["step"], told["digest"]) == (last.version, last.digest)
    model = AutoModelForCausalLM.from_pretrained(target)
    assert model.config.tie_word_embeddings and model.lm_head.weight is model.model.embed_tokens.weight
    assert len(AutoTokenizer.from_pretrained(target)) <= model.config.vocab_size
    assert last.digest in (target / "README.md").read_text()
    return target


def check_logprobs(run: Any, exported: Path, version: int) -> None:
    """Of the answers in the last validation: what the engine said, and what the exported model says."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    plays = list(read(RunDir(run.directory), Where(purpose="validate", steps=(version, version))))
    assert {play.task for play in plays} == {"frozenlake", "sorting"}
    compared = 0
    for tokens in (tokens for play in plays for tokens in play.samples):
        ids = torch.tensor(tokens.ids)
        with torch.no_grad():
            rows = torch.log_softmax(model(ids[None]).logits[0, :-1].float(), -1)
        theirs = rows.gather(1, ids[1:, None])[:, 0]
        sampled = torch.tensor(tokens.versions[1:]) >= 0
        torch.testing.assert_close(torch.tensor(tokens.logprobs[1:])[sampled], theirs[sampled], atol=1e-4, rtol=0)
        compared += int(sampled.sum())
    assert compared > 4 * len(plays)


def check_transcripts(run: Any) -> None:
    """Every trained trajectory is there, with its step, its tokens, and advantages that are not all alike."""
    directory = RunDir(run.directory)
    plays = with_advantages(directory, read(directory))
    trained = {play.trajectory: play for play in plays if play.step is not None}
    assert set(trained) == {name for line in ledger.read(directory.ledger) for name in line.trajectories}
    for play in trained.values():
        (tokens,) = play.samples
        assert len(tokens.ids) == play.tokens and play.first_version <= play.step and play.policy_s > 0
        assert sum(version >= 0 for version in tokens.versions) == play.sampled_tokens
        assert tokens.advantages is not None and len(tokens.advantages) == play.tokens
        assert [message["role"] for message in play.messages] == ["user", "assistant"] * play.turns
    assert len({round(max(play.samples[0].advantages, key=abs), 3) for play in trained.values()}) > 1


def check_eval(run: Any) -> None:
    """The last validation again: same seeds, same weights, greedy, so every play has the same reward."""
    found = json.loads(call("eval", run.directory, "--seeds", 4, "--json"))
    played = RunDir(found["run_dir"])
    assert not played.checkpoints.is_symlink() and set(found["tasks"]) == {"frozenlake", "sorting"}
    assert validations(played.path, version=0) == validations(run.directory, version=4)
    assert all(each["plays"] == each["seeds"] == 4 for each in found["tasks"].values())


def check_model(exported: Path, *overrides: str) -> None:
    """The directory is evaluated as any model, with other engines: what they say is what transformers says."""
    more = ["--seeds", 4, "--json", "observe.transcript_tokens=1", "env.workers=1", "reward.workers=1"]
    found = json.loads(call("eval", exported, "frozenlake", "sorting", *more, *overrides))
    played = type("Played", (), {"directory": Path(found["run_dir"])})
    check_logprobs(played, exported, version=0)


def validations(directory: Path, version: int) -> dict[str, Any]:
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return {line["task"]: line["each"] for line in lines if line["kind"] == "validation" and line["version"] == version}


def check_fork(run: Any, step: int) -> None:
    """It trains on, and the two ledgers are one chain."""
    fork = RunDir(run.directory.parent / "fork")
    said = call("fork", run.directory, "--step", step, "--to", fork.path, f"steps={step + 1}", "trainer.lr=1e-5")
    assert f"finished after {step + 1} of {step + 1} steps" in said
    assert [line.version for line in ledger.read(fork.ledger)] == [step + 1]
    assert not lineage.problems(fork) and not ledger.check(fork.ledger, group_size=2, alpha=1)
    assert [(began.forked, began.path) for began in lineage.ancestors(fork)] == [(step, str(run.directory))]
