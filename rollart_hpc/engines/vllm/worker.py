"""Runs inside vLLM's worker processes: installs weights from shared memory, or as a rank of a collective.

vLLM imports this module in every worker (`worker_extension_cls`), which registers our weight transfer with vLLM's
factory. A worker fetches the buckets itself; vLLM's calls only carry their location (`updates`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rollart_hpc.engines.vllm.settings import BACKEND
from rollart_hpc.engines.vllm.updates import INCOMPLETE, Update, open_update
from rollart_hpc.wire.library_ports import hold_libraries

log = logging.getLogger(__name__)

_TIED = {"lm_head.weight"}
# At every install this logger warns of layers without new weights, even of layers that have none. We check by name.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
hold_libraries()  # before NCCL and UCX listen in this process


class Extension:
    """A mixin for vLLM's worker; calls the worker's methods."""

    def take_weights(self, updates: Update | list[Update]) -> int | str:
        """Returns the bytes loaded, or the reason for the failure.

        Never raises: vLLM would then leave the other workers' answers unread and take them for answers to its next
        call. A failed install must not leave tensors behind either: the next one would take them for its own.
        """
        worker: Any = self
        try:
            worker.start_weight_update()
            worker.update_weights(updates)
            worker.finish_weight_update()
        except Exception as error:
            log.exception("could not load the weights")
            worker._weight_update_active = False
            worker.weight_transfer_engine.give_up()
            return str(error)
        return int(worker.weight_transfer_engine.num_bytes)


@dataclass
class NoInit(WeightTransferInitInfo):
    """There is nothing to set up in advance."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    update: Update


class RollartTransfer(WeightTransferEngine[NoInit, UpdateInfo]):
    init_info_cls = NoInit
    update_info_cls = UpdateInfo
    num_bytes = 0

    def init_transfer_engine(self, init_info: NoInit) -> None:
        pass

    def start_weight_update(self) -> None:
        """Reload layer by layer, because kernels may store weights in their own format (on CPU they are packed)."""
        initialize_layerwise_reload(self.model)  # from here on parameters have the checkpoint's format
        self._expected = {name for name, _ in self.model.named_parameters()}

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Unlike the base class, does not synchronize an accelerator on CPU machines, which have none."""
        self.receive_weights(UpdateInfo(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        weights = open_update(update_info.update, self.device)
        loaded = self.model.load_weights(iter(weights))  # type: ignore[operator]
        wanted = self._expected - _TIED if _is_tied(self.model) else self._expected
        if loaded is not None and not wanted <= loaded:
            names = sorted(wanted - loaded)
            raise RuntimeError(f"{len(names)} tensors {INCOMPLETE}: {names[:3]}")
        self.num_bytes = weights.num_bytes

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        _pack_tied_head(self.model)

    def give_up(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass


def _pack_tied_head(model: Any) -> None:
    """A head tied to the embeddings gets no weights of its own, but on CPU it uses a packed copy: pack it again."""
    head = getattr(model, "lm_head", None)
    if head is not None and _is_tied(model) and next(model.parameters()).device.type == "cpu":
        head.quant_method.process_weights_after_loading(head)


def _is_tied(model: Any) -> bool:
    return bool(getattr(getattr(model, "config", None), "tie_word_embeddings", False))


WeightTransferEngineFactory.register_engine(BACKEND, RollartTransfer)
