"""What takes roles with torch seconds to import. Owns the list, by role and kind of backend."""

from __future__ import annotations

import gc
import importlib

IMPORTS = {
    "relay": ("rollart_hpc.wire.link", "rollart_hpc.weights.relay"),
    "engine.torch": (
        "rollart_hpc.engines.torch.engine",
        "rollart_hpc.engines.service",
        "rollart_hpc.weights.direct",
    ),
    "engine.vllm": ("rollart_hpc.engines.service", "vllm"),
    "trainer.fsdp": (
        "rollart_hpc.trainers.base_model",  # with the architecture of the model it makes
        "rollart_hpc.trainers.fsdp.trainer",
        "rollart_hpc.trainers.service",
        "rollart_hpc.trainers.publish",
    ),
    "trainer.megatron": ("rollart_hpc.trainers.service", "rollart_hpc.trainers.publish"),
}


def load(*kinds: str) -> None:
    """The collector finds nothing in modules that stay to the end: it is off meanwhile, and leaves them out later.

    That saves a tenth of the time here, and a forked child from touching, and so copying, every page.
    """
    gc.disable()
    for kind in kinds:
        for name in IMPORTS[kind]:
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
