"""What is done with the results of a run that has finished: its model exported, evaluated, and forked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rollart_hpc.observe import ledger, lineage
from rollart_hpc.rundir import RunDir


def call(*arguments: object) -> str:
    command = [sys.executable, "-m", "rollart_hpc.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd="/")
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


def check_eval(run: Any) -> None:
    """The last validation again: same seeds, same weights, greedy, so every play has the same reward."""
    found = json.loads(call("eval", run.directory, "--seeds", 4, "--json"))
    played = RunDir(found["run_dir"])
    assert not played.checkpoints.is_symlink() and set(found["tasks"]) == {"frozenlake", "sorting"}
    assert validations(played.path, version=0) == validations(run.directory, version=4)
    assert all(each["plays"] == each["seeds"] == 4 for each in found["tasks"].values())


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
