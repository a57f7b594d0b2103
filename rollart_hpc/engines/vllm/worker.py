"""What runs inside vLLM's worker processes: installing weights from the node's shared memory.

vLLM imports this module in every worker (`worker_extension_cls`); importing it registers our weight transfer with
vLLM's factory. A worker maps the buckets itself: only their path and version go through vLLM's calls.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
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
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.store import StoredWeights

_TIED = {"lm_head.weight"}
# It warns of layers that get no weights at every install, also of those that have none: we check by name.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


class Extension:
    """Mixed into vLLM's worker; it has nothing to add but this module's import."""


@dataclass
class NoInit(WeightTransferInitInfo):
    """There is nothing to agree on beforehand."""


@dataclass
class StoredVersion(WeightTransferUpdateInfo):
    """One version in shared memory, checked by the engine's process already."""

    directory: str
    attempt: int
    version: int


class StoreTransfer(WeightTransferEngine[NoInit, StoredVersion]):
    init_info_cls = NoInit
    update_info_cls = StoredVersion

    def init_transfer_engine(self, init_info: NoInit) -> None:
        pass

    def start_weight_update(self) -> None:
        """Layer by layer: kernels may keep weights in a form of their own (on CPU they are packed)."""
        self._expected = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """The base class waits for an accelerator afterwards; on a CPU there is none to wait for."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: StoredVersion) -> None:
        weights_id = WeightsId(update_info.attempt, update_info.version)
        weights = StoredWeights(Path(update_info.directory), weights_id)
        weights.trust()
        loaded = self.model.load_weights(iter(weights))  # type: ignore[operator]
        wanted = self._expected - _TIED if _is_tied(self.model) else self._expected
        if loaded is not None and not wanted <= loaded:
            names = sorted(wanted - loaded)
            raise RuntimeError(f"{len(names)} tensors did not come with weights {weights_id}: {names[:3]}")

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        _pack_tied_head(self.model)

    def shutdown(self) -> None:
        pass


def _pack_tied_head(model: Any) -> None:
    """A head tied to the embeddings gets no weights of its own, but on a CPU it multiplies by a packed copy."""
    head = getattr(model, "lm_head", None)
    if head is not None and _is_tied(model) and next(model.parameters()).device.type == "cpu":
        head.quant_method.process_weights_after_loading(head)


def _is_tied(model: Any) -> bool:
    return bool(getattr(getattr(model, "config", None), "tie_word_embeddings", False))


WeightTransferEngineFactory.register_engine(BACKEND, StoreTransfer)
