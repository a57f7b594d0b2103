"""What takes roles with torch seconds to import. Owns the list, by role and kind of backend; imports nothing itself."""

from __future__ import annotations

IMPORTS = {
    "relay": ("rollart_hpc.wire.link", "rollart_hpc.weights.relay"),
    "engine.torch": (
        "rollart_hpc.engines.torch_engine",
        "rollart_hpc.engines.service",
        "rollart_hpc.weights.direct",
    ),
    "engine.vllm": ("rollart_hpc.engines.service", "vllm"),
    "trainer.fsdp": (
        "rollart_hpc.trainers.base_model",  # with the architecture of the model it makes
        "rollart_hpc.trainers.fsdp",
        "rollart_hpc.trainers.service",
        "rollart_hpc.trainers.publish",
    ),
    "trainer.megatron": ("rollart_hpc.trainers.service", "rollart_hpc.trainers.publish"),
}
