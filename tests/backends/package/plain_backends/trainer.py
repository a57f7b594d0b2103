"""SGD on one rank. `StepTrainer` does advantages, packing, losses and metrics; a backend adds this."""

from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from plain_backends.declarations import TrainerOptions
from rollart_hpc.config.backends import read_options
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.trainers import checkpoint
from rollart_hpc.trainers.checksums import Head
from rollart_hpc.trainers.packing import MicroBatch
from rollart_hpc.trainers.step import StepTrainer
from rollart_hpc.trainers.world import World

_FILE = "state.pt"


class PlainTrainer(StepTrainer):
    def __init__(self, config: RunConfig, model_dir: Path, world: World) -> None:
        super().__init__(config, model_dir, world, replica=0, num_replicas=1)
        self._model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).to(world.device).eval()
        self._optimizer = torch.optim.SGD(
            self._model.parameters(),
            lr=config.trainer.lr,
            momentum=read_options(TrainerOptions, config.trainer.options).momentum,
            weight_decay=config.trainer.weight_decay,
        )
        self.begin()

    # --- gradients ---------------------------------------------------------------------------

    def _forward_backward(self, micros: list[MicroBatch]) -> None:
        for micro in micros:
            if micro.num_sampled:
                self._loss(micro, self._chosen(micro), entropy=None, reference=None).backward()

    def _chosen(self, micro: MicroBatch) -> torch.Tensor:
        """Log-probs of the sampled tokens, by one forward for each packed sample."""
        samples = micro.ids[0].split(micro.lengths)
        logits = torch.cat([self._model(input_ids=ids[None], use_cache=False).logits[0] for ids in samples])
        logprobs = torch.log_softmax(logits[micro.keep].float() / self._config.flow.temperature, -1)
        return logprobs.gather(1, micro.targets[:, None])[:, 0]

    def _chosen_logprobs(self, micros: list[MicroBatch]) -> list[torch.Tensor]:
        with torch.no_grad():
            return [self._chosen(micro) for micro in micros]

    def _reduce(self, num_bins: int) -> None:
        """There is one replica."""

    def _optimize(self, total: int, lr: float) -> float:
        parameters = [p for p in self._model.parameters() if p.grad is not None]
        for parameter in parameters:
            parameter.grad /= total
        limit = self._config.trainer.grad_clip or torch.inf
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
        if torch.isfinite(torch.tensor(norm)):
            self._optimizer.param_groups[0]["lr"] = lr
            self._optimizer.step()
        return norm

    def _forget_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    # --- weights -----------------------------------------------------------------------------

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from ((name, parameter.detach()) for name, parameter in self._model.named_parameters())

    def save(self, directory: Path) -> None:
        def write() -> list[str]:
            torch.save([self._model.state_dict(), self._optimizer.state_dict()], directory / _FILE)
            return [_FILE]

        head = Head(version=self.version, digest=self.digest, ranks=1, has_stepped=self.version > 0)
        checkpoint.save(directory, self._world, head, write)

    def _restore(self, directory: Path) -> Head:
        def read(head: Head) -> None:
            model, optimizer = torch.load(directory / _FILE, map_location=self._world.device, weights_only=True)
            self._model.load_state_dict(model)
            self._optimizer.load_state_dict(optimizer)

        return checkpoint.load(directory, self._world, read)
