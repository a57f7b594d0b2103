"""Losses and gradients of a step against TRL's, on the same batch. TRL gets an environment of its own.

What TRL defines otherwise, and what is done about it here:

- It divides advantages by the standard deviation plus 1e-4, we by that plus 1e-6: it gets our advantages.
- KL: by default it multiplies the KL of a token by its ratio, which is our `kl_weighted: true`; the GRPO of the paper
  does not.
- CISPO: its epsilon_high is the largest weight itself, as our `high`.
- Dual clip: its `delta` limits the ratio before the minimum is taken, which is the same function.
- GSPO: its ratio is one per sample, with the gradient of the mean; ours one per token with the same gradient in sum.
- Dr.GRPO: its constant is max_completion_length, ours aggregation_params.length.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rollart_hpc.trainers.fsdp.lora import full_tensor
from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.world import World, open_world
from rollart_hpc.types import OBSERVED, Sample, TokenRecord, TrainGroup
from tests.acceptance.drive import table, write_page
from tests.trainers.plain import VOCABULARY, make_config, make_model

# What TRL needs beyond the packages of this environment, which it sees too: torch is not installed again.
PACKAGES = ("trl==1.16.0", "datasets==5.2.0", "multiprocess==0.70.19", "pyarrow==26.0.1")
LENGTH, LIMIT = 12, 1e-5
KL = {"kl": 0.04}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # our keys, TRL's
    "GRPO": (
        {"aggregation": "sample_mean", "loss_params": {"dual_clip": 0.0}, **KL},
        {"loss_type": "grpo", "epsilon": 0.2, "beta": 0.04, "use_bias_correction_kl": False},
    ),
    "GRPO, KL weighted": (
        {"aggregation": "sample_mean", "loss_params": {"dual_clip": 0.0}, "kl_weighted": True, **KL},
        {"loss_type": "grpo", "epsilon": 0.2, "beta": 0.04},
    ),
    "GRPO, dual clip": (
        {"aggregation": "sample_mean", "loss_params": {"dual_clip": 3.0}},
        {"loss_type": "grpo", "epsilon": 0.2, "delta": 3.0, "beta": 0.0},
    ),
    "Dr.GRPO": (
        {"estimator": "dr_grpo", "aggregation": "constant", "aggregation_params": {"length": LENGTH},
         "loss_params": {"dual_clip": 0.0}},
        {"loss_type": "dr_grpo", "epsilon": 0.2, "scale_rewards": "none", "beta": 0.0},
    ),
    "DAPO": (
        {"aggregation": "token_mean", "loss_params": {"clip_high": 0.28, "dual_clip": 0.0}},
        {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.0},
    ),
    "GSPO": (
        {"loss": "gspo", "aggregation": "sample_mean"},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4,
         "beta": 0.0},
    ),
    "CISPO": (
        {"loss": "cispo", "aggregation": "token_mean", "loss_params": {"high": 1.5}},
        {"loss_type": "cispo", "epsilon_high": 1.5, "beta": 0.0},
    ),
    "SAPO": (
        {"loss": "sapo", "aggregation": "sample_mean"},
        {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05, "beta": 0.0},
    ),
}  # fmt: skip


def against_trl(keep: Path) -> bool:
    """The policy has taken a step, so it differs from the reference; log-probs at sampling differ from both."""
    with tempfile.TemporaryDirectory(prefix="trl-") as scratch:
        directory = Path(scratch)
        base = make_model(directory / "base", tied=False)
        world = open_world(0, 1, "cpu")
        policy = _moved(base, directory / "policy", world)
        ours, cases = {}, {}
        for number, (name, (keys, theirs)) in enumerate(CASES.items()):
            groups = _groups(number, policy, world)
            ours[name] = _gradients(base, policy, world, keys, groups)
            cases[name] = {"batch": _as_rows(groups), "trl": theirs}
        torch.save({"length": LENGTH, "cases": cases}, directory / "batch.pt")
        python = _environment(keep / "trl-environment")
        script = Path(__file__).with_name("trl_losses.py")
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([python, script, directory], check=True, env=environment)
        answer = torch.load(directory / "trl.pt")
    rows = [_compared(name, ours[name], answer["found"][name]) for name in CASES]
    write_page("trl", page(rows, answer["version"]))
    return all(float(cell) <= LIMIT for row in rows for cell in row[2:4])


def _environment(directory: Path) -> Path:
    """Packages of this one are seen there too."""
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
        (site,) = directory.glob("lib/python*/site-packages")
        (site / "base.pth").write_text(str(Path(torch.__file__).parents[1]))
        command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", *PACKAGES]
        subprocess.run(command, check=True)
    return python


def _moved(base: Path, target: Path, world: World) -> Path:
    """A policy that has learnt something, as a directory."""
    trainer = FsdpTrainer(make_config(trainer__lr=0.01), base, world)
    trainer.accumulate(_groups(99, base, world))
    trainer.step()
    model = AutoModelForCausalLM.from_pretrained(base)
    model.load_state_dict({name: tensor.clone() for name, tensor in trainer.export()}, strict=False)
    model.save_pretrained(target)
    return target


def _groups(seed: int, model: Path, world: World) -> list[TrainGroup]:
    """Three groups of four plays of one turn, sampled by a policy somewhat different from `model`."""
    rng = np.random.default_rng(seed)
    groups = []
    for number in range(3):
        group = TrainGroup(number, "task")
        prompt = rng.integers(2, VOCABULARY, int(rng.integers(2, 7)))
        for member in range(4):
            answer = rng.integers(2, VOCABULARY, int(rng.integers(3, LENGTH + 1)))
            versions = np.concatenate([np.full(len(prompt), OBSERVED), np.zeros(len(answer))]).astype(np.int32)
            ids = np.concatenate([prompt, answer]).astype(np.int32)
            record = TokenRecord(ids, np.zeros(len(ids), np.float32), versions)
            group.samples.append(Sample(f"{number}.{member}", number, "task", record, float(rng.normal())))
        groups.append(group)
    records = [sample.record for group in groups for sample in group.samples]
    for record, logprobs in zip(records, FsdpTrainer(make_config(), model, world).logprobs(records), strict=True):
        noise = rng.normal(0.0, 0.3, len(record)).astype(np.float32) * record.sampled
        record.logprobs[:] = np.minimum(logprobs + noise, 0.0)
    return groups


def _gradients(
    base: Path, policy: Path, world: World, keys: dict[str, Any], groups: list[TrainGroup]
) -> tuple[float, dict[str, torch.Tensor]]:
    config = make_config(**{f"algorithm__{key}": value for key, value in keys.items()})
    trainer = FsdpTrainer(config, base, world)
    state = AutoModelForCausalLM.from_pretrained(policy).state_dict()
    trainer._model.load_state_dict(state)
    trainer.accumulate(groups)
    trainer._add_up()
    total = trainer._total(trainer._batch)
    loss = trainer._tally.close(world, total)
    named = trainer._model.named_parameters()
    return loss, {name: full_tensor(p.grad) / total for name, p in named if p.grad is not None}


def _as_rows(groups: list[TrainGroup]) -> dict[str, Any]:
    samples = [sample for group in groups for sample in group.samples]
    cut = [int(np.flatnonzero(sample.record.sampled)[0]) for sample in samples]
    assert all(sample.advantages is not None for sample in samples)
    return {
        "prompts": [sample.record.ids[:at].tolist() for sample, at in zip(samples, cut)],
        "answers": [sample.record.ids[at:].tolist() for sample, at in zip(samples, cut)],
        "logprobs": [sample.record.logprobs[at:].tolist() for sample, at in zip(samples, cut)],
        "advantages": [float(sample.advantages[0]) for sample in samples],  # type: ignore[index]
    }


def _compared(name: str, ours: tuple[float, dict[str, Any]], theirs: tuple[float, dict[str, Any]]) -> list[str]:
    assert ours[1].keys() == theirs[1].keys(), name
    apart = max(float((ours[1][key] - theirs[1][key]).abs().max()) for key in ours[1])
    largest = max(float(gradient.abs().max()) for gradient in ours[1].values())
    return [name, f"{ours[0]:.6f}", f"{abs(ours[0] - theirs[0]):.1e}", f"{apart:.1e}", f"{largest:.3f}"]


def page(rows: list[list[str]], version: str) -> list[str]:
    notes = (__doc__ or "").split("done about it here:")[1].strip().splitlines()
    return [
        "# Losses and gradients against TRL",
        "",
        "One batch per row (3 groups of 4 answers, ratios between about 0.4 and 2.5) through our trainer `fsdp` and",
        f"through `GRPOTrainer._compute_loss` of TRL {version}, float32 on a CPU, from the same weights. The largest",
        f"absolute difference of any gradient is below {LIMIT:g}. Printed by:",
        "",
        "```",
        "make acceptance-trl",
        "```",
        "",
        *table(["algorithm", "loss", "difference of losses", "of gradients", "largest gradient"], rows),
        "",
        "What TRL defines otherwise, and what is done about it here:",
        "",
        *notes,
    ]
