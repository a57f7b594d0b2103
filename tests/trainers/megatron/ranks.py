"""Ranks of the trainer `megatron`, in processes of their own: what runs it on a CPU patches torch for a whole process.

megatron is imported once; the ranks of each world are forked from here. `python -m tests.trainers.megatron.ranks DIR`
reads DIR/jobs.json and writes what rank R of world W found to DIR/W.R.json and DIR/W.R.pt.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rollart_hpc.errors import SiteError
from rollart_hpc.trainers import slices
from rollart_hpc.trainers.megatron import cpu_shim
from rollart_hpc.trainers.packing import pack
from rollart_hpc.trainers.world import World, open_world
from rollart_hpc.types import Sample, TrainGroup
from tests.trainers.plain import make_config, make_groups, make_record

VOCABULARY = 61  # is padded
LIMIT_S = 300
FAMILIES = ("qwen3", "qwen2", "llama")
TRAINING = {"algorithm__entropy": 0.01, "algorithm__kl": 0.1, "trainer__weight_decay": 0.1, "flow__temperature": 0.8}
TRAINING |= {"algorithm__updates": 2, "algorithm__epochs": 2}


def batch(seed: int) -> list[TrainGroup]:
    return make_groups(seed, num_groups=5, vocabulary=VOCABULARY)


def records() -> list[Any]:
    return [make_record(np.random.default_rng(i), 20 + i, vocabulary=VOCABULARY) for i in range(3)]


JUDGED = {
    "algorithm__estimator": "gae", "algorithm__estimator_params": {"lam": 0.9}, "algorithm__updates": 2,
    "algorithm__critic__warmup_steps": 1, "algorithm__kl": 0.1, "algorithm__kl_target": 0.01,
    "algorithm__kl_horizon": 20, "algorithm__kl_refresh": 2,
}  # fmt: skip


class Rank:
    """Everything that is looked at in one world."""

    def __init__(self, job: dict[str, Any], world: World, directory: Path) -> None:
        self.job, self.world, self.directory = job, world, directory
        self.tensors: dict[str, dict[str, torch.Tensor]] = {}
        self.found: dict[str, Any] = {}

    def trainer(self, family: str, **changes: Any) -> Any:
        from rollart_hpc.trainers.kinds import make_trainer

        config = make_config(trainer__kind="megatron", **self.job["sizes"], **changes)
        return make_trainer(config, self.directory / family, self.world)

    def exports(self) -> None:
        """Weights as they were read, and log-probs under them."""
        for family in FAMILIES:
            trainer = self.trainer(family, flow__temperature=0.8)
            self.tensors[family] = {name: tensor.clone() for name, tensor in trainer.export()}
            self.found[f"logprobs {family}"] = [logprobs.tolist() for logprobs in trainer.logprobs(records())]
            self.found[f"digest {family}"] = trainer.digest

    def places(self) -> None:
        """Log-probs of the next token in all places, and entropies; one rank only."""
        from rollart_hpc.trainers.megatron.model import Scoring

        for family in FAMILIES:
            trainer = self.trainer(family)
            micro = pack([Sample("", 0, "", record, 0.0) for record in records()], [1.0] * 3, self.world.device)
            micro.keep, micro.targets = torch.arange(micro.ids.shape[1]), micro.ids[0].roll(-1)
            with torch.no_grad():
                scores = trainer._model(micro, Scoring(1.0, VOCABULARY, with_entropy=True))[0]
                self.tensors[f"places {family}"] = {"": scores}

    def trains(self) -> None:
        for family in FAMILIES:
            trainer = self.trainer(family, **TRAINING)
            metrics = []
            for seed in range(3):
                groups = batch(seed)
                trainer.accumulate(groups[:2])
                trainer.accumulate(groups[2:])
                metrics.append(trainer.step().metrics)
            self.found[f"metrics {family}"] = metrics
            self.tensors[f"trained {family}"] = {name: tensor.clone() for name, tensor in trainer.export()}
            if family == "qwen3":
                self.resumes(trainer)

    def resumes(self, trainer: Any) -> None:
        checkpoint = self.directory / f"checkpoint {self.job['name']}"
        trainer.save(checkpoint)
        other = self.trainer("qwen3", **TRAINING)
        other.accumulate(batch(9))  # is forgotten
        other.load(checkpoint)
        self.found["resumed"] = [[t.version, t.digest] for t in (trainer, other)]
        for t in (trainer, other):
            t.accumulate(batch(3))
        results = [t.step() for t in (trainer, other)]
        self.found["gone on"] = [result.digest for result in results]
        self.found["fourth"] = results[0].metrics
        if "loads" in self.job:  # written by other sizes
            other.load(self.directory / f"checkpoint {self.job['loads']}")
            self.found["resharded"] = [other.version, other.digest]
            other.accumulate(batch(3))
            self.found["resharded fourth"] = other.step().metrics
        self.damaged(other, checkpoint)

    def damaged(self, trainer: Any, checkpoint: Path) -> None:
        victim = max(checkpoint.glob("*.distcp"), key=lambda path: (path.stat().st_size, path))
        self.flip_a_bit(victim)
        before = trainer.digest
        try:
            trainer.load(checkpoint)
        except SiteError as error:
            self.found["damaged"] = str(error)
        self.found["damaged keeps"] = trainer.digest == before == trainer._weights_digest()
        self.flip_a_bit(victim)  # other worlds load it

    def flip_a_bit(self, path: Path) -> None:
        self.world.sum([0.0])  # nobody reads it any more
        if self.world.rank == 0:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        self.world.sum([0.0])

    def judges(self) -> None:
        """A critic, a refreshed reference and an adapted coefficient, and all of them from a checkpoint."""
        checkpoint = self.directory / f"critic {self.job['name']}"
        trainer = self.trainer("qwen3", **JUDGED)
        metrics = []
        for seed in range(3):
            trainer.accumulate(batch(seed))
            metrics.append(trainer.step().metrics)
        self.found["judged"] = metrics
        trainer.save(checkpoint)
        other = self.trainer("qwen3", **JUDGED)
        other.load(self.directory / f"critic {self.job.get('loads', self.job['name'])}")
        for one in (trainer, other):
            one.accumulate(batch(3))
            metrics.append(one.step().metrics)
        plain = self.trainer("qwen3")
        plain.load(checkpoint)
        plain.save(self.directory / f"plain {self.job['name']}")
        other.load(self.directory / f"plain {self.job['name']}")
        self.found["without"] = [plain.version, other.version]

    def odd_steps(self) -> None:
        """Nothing to train, gradients that are not finite, a batch cut in another way, a checkpoint before any step."""
        trainer = self.trainer("qwen3", deterministic=True, trainer__lr=0.01)
        trainer.save(self.directory / f"first {self.job['name']}")
        first = trainer.digest
        trainer.accumulate([TrainGroup(0, "task")])
        self.found["empty"] = trainer.step().digest == first
        groups = batch(1)
        groups[0].samples[0].record.logprobs[groups[0].samples[0].record.sampled] = np.float32(np.nan)
        trainer.accumulate(groups)
        self.found["not finite"] = [trainer.step().digest == first, trainer.version]
        trainer.accumulate(batch(4))
        whole = trainer.step().digest
        trainer.load(self.directory / f"first {self.job['name']}")
        self.found["first again"] = [trainer.version, trainer.digest == first]
        for _ in range(2):
            trainer.accumulate([TrainGroup(0, "task")])
            trainer.step()
        trainer.accumulate(batch(8))
        trainer.discard()
        for group in batch(4):
            trainer.accumulate([group])
        self.found["cut"] = trainer.step().digest == whole


def run(job: dict[str, Any], rank: int, directory: Path) -> None:
    out = directory / f"{job['name']}.{rank}"
    try:
        world = open_world(rank, job["ranks"], "cpu", directory / f"{job['name']}.rendezvous")
        slices.SLICE_NUMBERS = job.get("slice", slices.SLICE_NUMBERS)
        one = Rank(job, world, directory)
        for part in job["parts"]:
            getattr(one, part)()
        torch.save(one.tensors, f"{out}.pt")
        world.close()
    except Exception:
        one.found["error"] = traceback.format_exc()
    Path(f"{out}.json").write_text(json.dumps(one.found))


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    cpu_shim.install()
    import rollart_hpc.trainers.megatron.checkpoint
    import rollart_hpc.trainers.megatron.vocabulary  # noqa: F401

    fork = multiprocessing.get_context("fork")
    for job in json.loads((directory / "jobs.json").read_text()):
        processes = [fork.Process(target=run, args=(job, rank, directory)) for rank in range(job["ranks"])]
        for process in processes:
            process.start()
        for process in processes:
            process.join(LIMIT_S)
            process.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
