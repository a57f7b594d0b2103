"""The declaration of trainer `fsdp`."""

from rollart_hpc.backends.declaration import Backend

BACKEND = Backend(
    role="trainer",
    kind="fsdp",
    summary="FSDP2 over a transformers model",
    make="rollart_hpc.trainers.fsdp.trainer:FsdpTrainer",
    modules=("torch", "transformers", "safetensors"),
    extra="train",
    imports=("rollart_hpc.trainers.fsdp.trainer",),
    is_forkable=True,
    is_sharded=True,
    can=frozenset({"ranks", "lora", "activation_checkpointing", "deterministic", "critic", "kl_refresh"}),
)
