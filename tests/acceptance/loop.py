"""Generation and training in turn in one process, so that a study decides which version samples what.

The parts are those of a run (environments, rewards, engine `torch`, trainer `fsdp`); the flow between them is not. With
a lag of g, step n trains on tokens that version n - g sampled, all of them; the first g steps use version 0.
"""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rollart_hpc.config.objects import resolve
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.engines.contract import Request
from rollart_hpc.engines.torch.engine import TorchEngine
from rollart_hpc.envs.host import Happened
from rollart_hpc.envs.render import Renderer
from rollart_hpc.envs.trajectory import EnvTrajectory
from rollart_hpc.rewards.contract import Score, Transcript
from rollart_hpc.trainers.base_model import make_tiny_model
from rollart_hpc.trainers.chunks import groups_of
from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.world import open_world, set_up_cpu
from rollart_hpc.types import TrainGroup, WeightsId
from rollart_hpc.wire.messages import Chunk, ChunkItem, Ended, Play


class Played(NamedTuple):
    ended: Ended
    record: list[Any]
    score: Score
    task: str


@dataclass
class _Live:
    trajectory: EnvTrajectory
    environment: Any
    texts: list[tuple[str, str]] = field(default_factory=list)
    observation: str = ""


class Loop:
    def __init__(self, config: RunConfig, model_dir: Path, *, lag: int = 0) -> None:
        set_up_cpu(1)
        torch.manual_seed(config.seed)
        self.config = config
        self._rng = random.Random(config.seed)
        self._renderer = Renderer(model_dir)
        longest = max(task.max_tokens for task in config.tasks.values())
        config.engine.max_running = config.engine.kv_slots = 128
        self._engine = TorchEngine(model_dir, config.engine, longest, seed=config.seed)
        self._trainer = FsdpTrainer(config, model_dir, open_world(0, 1, "cpu"))
        self._versions: deque[dict[str, torch.Tensor]] = deque(maxlen=lag + 1)
        self._requests = 0
        self._keep()

    # --- steps -------------------------------------------------------------------------------

    def step(self) -> dict[str, float]:
        """One optimizer step; its metrics, with the measured age of its tokens in versions."""
        began_s = time.monotonic()
        version = self._trainer.version
        self._install(version - len(self._versions) + 1, self._versions[0])
        groups = self._batch()
        sampled = [s.record.versions[s.record.sampled] for g in groups for s in g.samples]
        self._trainer.accumulate(groups, last=True)
        metrics = self._trainer.step().metrics
        self._keep()
        age = float(version - np.concatenate(sampled).mean())
        return {**metrics, "age": age, "seconds": time.monotonic() - began_s}

    def validate(self, plays: int, temperature: float = 0.0) -> dict[str, float]:
        """Success by task of the newest weights, on held-out (odd) seeds."""
        self._install(self._trainer.version, self._versions[-1])
        found = {}
        for name in self.config.tasks:
            played = self._play([_play(name, f"v{i}", 2 * i + 1) for i in range(plays)], temperature)
            found[name] = sum(p.score.success for p in played) / len(played)
        return found

    def _keep(self) -> None:
        self._versions.append({name: tensor.clone() for name, tensor in self._trainer.export()})

    def _install(self, version: int, weights: dict[str, torch.Tensor]) -> None:
        self._engine.suspend()
        self._engine.install(weights.items(), WeightsId(1, version))
        self._engine.resume()

    def _batch(self) -> list[TrainGroup]:
        flow = self.config.flow
        names = _mix({name: task.weight for name, task in self.config.tasks.items()}, flow.groups_per_step)
        seeds = [2 * self._rng.randrange(1 << 30) for _ in names]
        plays = [
            _play(name, f"{group}.{member}", seed)
            for group, (name, seed) in enumerate(zip(names, seeds))
            for member in range(flow.group_size)
        ]
        played = sorted(self._play(plays, flow.temperature), key=lambda p: _number(p.ended.trajectory))
        items = [
            ChunkItem(
                p.ended.trajectory, _number(p.ended.trajectory)[0], p.task, p.score.reward, p.ended.sample_lengths,
                bool(p.score.success), p.ended.is_cut, p.ended.states,
            )
            for p in played
        ]  # fmt: skip
        return groups_of(Chunk(0, 0, items, True), [frame for p in played for frame in p.record])

    # --- plays -------------------------------------------------------------------------------

    def _play(self, plays: list[Play], temperature: float) -> list[Played]:
        live: dict[str, _Live] = {}
        done: list[Played] = []
        for play in plays:
            task = self.config.tasks[play.task]
            one = _Live(EnvTrajectory(play, task, self._renderer), resolve(task.environment)(**task.params))
            one.observation = one.environment.reset(play.seed)
            one.trajectory.begin(one.observation)
            live[play.trajectory] = one
            self._ask(one, temperature)
        while live:
            for finished in self._engine.step():
                one = live[finished.trajectory]
                if self._answer(one, finished.record):
                    self._ask(one, temperature)
                else:
                    done.append(self._end(live.pop(finished.trajectory)))
        self._engine.forget([play.trajectory for play in plays])
        return done

    def _ask(self, one: _Live, temperature: float, *, resend: bool = False) -> None:
        wanted, ids = one.trajectory.wanted(resend=resend)
        self._requests += 1
        request = Request(
            self._requests, wanted.trajectory, wanted.prefix_tokens, wanted.prefix_hash, wanted.full,
            np.frombuffer(ids, np.int32), wanted.max_new_tokens, temperature,
        )  # fmt: skip
        if not self._engine.add(request):
            self._ask(one, temperature, resend=True)

    def _answer(self, one: _Live, record: Any) -> bool:
        """True if another turn follows."""
        text = one.trajectory.answer(record)
        one.texts.append((one.observation, text))
        turn = one.environment.step(text)
        if turn.done:
            return False
        one.observation = turn.observation
        one.trajectory.observe(turn.observation)
        one.trajectory.is_cut = one.trajectory.room < 1
        return one.trajectory.room >= 1

    def _end(self, one: _Live) -> Played:
        play, outcome = one.trajectory.play, one.environment.outcome()
        task = self.config.tasks[play.task]
        ended, frames = one.trajectory.ended(Happened(one.trajectory, "done", status="done", outcome=outcome))
        score = resolve(task.reward)(Transcript(play.task, one.texts, outcome), **task.reward_params)
        one.environment.close()
        return Played(ended, frames[1:], score, play.task)


def base_model(directory: Path, config: RunConfig, seed: int = 0) -> Path:
    """The tiny model of these tasks, made once."""
    if not (directory / "config.json").exists():
        directory.mkdir(parents=True, exist_ok=True)
        environments = [resolve(task.environment)(**task.params) for task in config.tasks.values()]
        make_tiny_model(directory, seed, environments, log=lambda _: None)
    return directory


def _play(task: str, name: str, seed: int) -> Play:
    return Play(name, 0, task, seed, 0)


def _number(trajectory: str) -> tuple[int, int]:
    group, _, member = trajectory.partition(".")
    return int(group), int(member)


def _mix(weights: dict[str, float], count: int) -> list[str]:
    """`count` names in proportion to their weights, each chosen where it lags most."""
    total, given = sum(weights.values()), dict.fromkeys(weights, 0)
    for number in range(1, count + 1):
        name = max(weights, key=lambda name: weights[name] / total * number - given[name])
        given[name] += 1
    return [name for name, times in given.items() for _ in range(times)]
