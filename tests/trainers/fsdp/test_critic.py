from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rollart_hpc.trainers.algorithms.estimators import surprises
from rollart_hpc.trainers.algorithms.plays import plays_of, trainable
from rollart_hpc.trainers.fsdp.critic import FsdpCritic
from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.world import World
from rollart_hpc.types import TrainGroup
from tests.trainers.fsdp.test_ranks import run, weights
from tests.trainers.plain import learned, make_config, make_groups

GAE = {"algorithm__estimator": "gae", "algorithm__estimator_params": {"lam": 0.9}, "trainer__lr": 0.01}


def critic_of(trainer: FsdpTrainer) -> FsdpCritic:
    assert isinstance(trainer._critic, FsdpCritic)
    return trainer._critic


def stepped(trainer: FsdpTrainer, *seeds: int) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for seed in seeds:
        for group in make_groups(seed):
            trainer.accumulate([group])
        metrics = trainer.step().metrics
    return metrics


class PlainCritic:
    """One sample at a time, without packing."""

    def __init__(self, model_dir: Path, config: Any) -> None:
        self.body = AutoModelForCausalLM.from_pretrained(model_dir, attn_implementation="eager").model
        self.head = torch.nn.Linear(self.body.config.hidden_size, 1, bias=False)
        torch.nn.init.zeros_(self.head.weight)
        self.parameters = [*self.body.parameters(), *self.head.parameters()]
        trainer = config.trainer
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=trainer.lr, betas=(trainer.beta1, trainer.beta2), weight_decay=0.0
        )

    def values(self, sample: Any) -> torch.Tensor:
        hidden = self.body(input_ids=torch.from_numpy(sample.record.ids.astype(np.int64))[None])[0][0]
        return self.head(hidden[trainable(sample)])[:, 0]

    def step(self, groups: list[TrainGroup]) -> float:
        """Returns are plain ones: every token's is the reward of its play."""
        samples = [sample for group in groups for sample in group.samples if len(trainable(sample))]
        with torch.no_grad():
            before = [self.values(sample) for sample in samples]
        losses = []
        for sample, old in zip(samples, before, strict=True):
            new = self.values(sample)
            near = torch.clamp(new, old - 0.5, old + 0.5)
            losses.append(0.5 * torch.maximum((new - sample.reward) ** 2, (near - sample.reward) ** 2))
        self.optimizer.zero_grad()
        loss = torch.cat(losses).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return loss.item()


@pytest.mark.parametrize("budget", [1, 64, 100_000])
def test_it_learns_returns_like_a_plain_critic(budget: int, model_dir: Path, world: World) -> None:
    config = make_config(trainer__microbatch_tokens=budget, **GAE)
    plain, trainer = PlainCritic(model_dir, config), FsdpTrainer(config, model_dir, world)
    for seed in range(3):
        expected = plain.step(make_groups(seed))
        metrics = stepped(trainer, seed)
        assert metrics["value_loss"] == pytest.approx(expected, rel=1e-4)
    assert metrics["value_grad_norm"] > 0
    groups = make_groups(9)
    critic_of(trainer).judge(groups, trainer._new_batch(), 0)
    for sample in (s for group in groups for s in group.samples if len(trainable(s))):
        np.testing.assert_allclose(sample.values, plain.values(sample).detach().numpy(), atol=2e-4)


def test_advantages_are_those_of_gae_whitened_over_the_batch(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(**GAE), model_dir, world)
    stepped(trainer, 0, 1)
    groups = trainer._with_advantages(make_groups(2))
    plays = [play for group in groups for play in plays_of(group)]
    assert all(play.values is not None and np.ptp(play.values) > 0 for play in plays)
    raw = np.concatenate([surprises(play, 1.0, 0.9) for play in plays])
    got = np.concatenate([s.advantages for g in groups for samples in _by_play(g) for s in samples])
    np.testing.assert_allclose(got, (raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8), atol=1e-5)


def _by_play(group: TrainGroup) -> list[list[Any]]:
    names = dict.fromkeys(sample.trajectory for sample in group.samples)
    return [[s for s in group.samples if s.trajectory == name] for name in names]


def test_it_comes_to_explain_rewards_that_follow_from_what_was_said(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(trainer__weight_decay=0.0, **GAE), model_dir, world)
    found = []
    for step in range(25):
        groups = make_groups(step, num_groups=2)
        for sample in (s for group in groups for s in group.samples):
            sample.reward = float(sample.trajectory.endswith("0"))
            sample.record.ids[:] = 3 if sample.reward else 5
        trainer.accumulate(groups)
        found.append(trainer.step().metrics["explained_variance"])
    assert found[0] == pytest.approx(0.0, abs=1e-6)
    assert found[-1] > 0.8


def test_the_policy_waits_for_the_critic_to_warm_up(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(algorithm__critic__warmup_steps=2, **GAE), model_dir, world)
    first, digests = trainer.digest, []
    for seed in range(3):
        metrics = stepped(trainer, seed)
        digests.append(trainer.digest)
        assert metrics["value_grad_norm"] > 0 and metrics["update_skipped"] == 0
        assert (metrics["lr"] == 0) is (seed < 2)
    assert digests[:2] == [first, first] and digests[2] != first


@pytest.mark.parametrize("warmup", [0, 3])
def test_a_checkpoint_holds_the_critic_and_its_optimizer(
    warmup: int, model_dir: Path, world: World, tmp_path: Path
) -> None:
    config = make_config(algorithm__critic__warmup_steps=warmup, **GAE)
    one, two = (FsdpTrainer(config, model_dir, world) for _ in range(2))
    stepped(one, 0, 1)
    one.save(tmp_path / "c")
    stepped(two, 7)  # is forgotten
    two.load(tmp_path / "c")
    for name, tensor in critic_of(two).model.state_dict().items():
        assert torch.equal(tensor, critic_of(one).model.state_dict()[name])
    assert stepped(one, 2, 3) == stepped(two, 2, 3)
    assert one.digest == two.digest


def test_a_checkpoint_without_a_critic_starts_a_new_one(model_dir: Path, world: World, tmp_path: Path) -> None:
    plain = FsdpTrainer(make_config(), model_dir, world)
    stepped(plain, 0)
    plain.save(tmp_path / "c")
    trainer = FsdpTrainer(make_config(**GAE), model_dir, world)
    trainer.load(tmp_path / "c")
    assert (trainer.version, trainer.digest) == (1, plain.digest)
    assert stepped(trainer, 1)["value_loss"] > 0
    trainer.save(tmp_path / "d")
    plain.load(tmp_path / "d")
    assert plain.version == 2


def test_two_ranks_equal_one(model_dir: Path, tmp_path: Path) -> None:
    config = GAE | {"trainer__lr": 1e-3, "algorithm__updates": 2, "algorithm__epochs": 2}
    job = {"model": str(model_dir), "steps": 3, "chunks": [1, 3, 1], "config": config}
    (one,) = run(1, tmp_path, "one", **job)
    first, second = run(2, tmp_path, "two", save=str(tmp_path / "ckpt"), **job)
    assert first["metrics"] == second["metrics"]
    for a, b in zip(one["metrics"], first["metrics"], strict=True):
        assert learned(a) == pytest.approx(learned(b), rel=1e-3, abs=1e-5)
    for name, tensor in weights(tmp_path, "one").items():
        torch.testing.assert_close(tensor, weights(tmp_path, "two")[name], atol=5e-5, rtol=1e-3)
    straight = run(2, tmp_path, "straight", **job | {"steps": 4})
    (gone_on,) = run(1, tmp_path, "on", load=str(tmp_path / "ckpt"), **job | {"steps": 1})
    assert learned(gone_on["metrics"][0]) == pytest.approx(learned(straight[0]["metrics"][3]), rel=1e-3, abs=1e-5)
