"""The declaration of engine `torch`."""

from rollart_hpc.backends.declaration import Backend

BACKEND = Backend(
    role="engine",
    kind="torch",
    summary="plain transformers models, on the CPU or one GPU",
    make="rollart_hpc.engines.torch.engine:make",
    modules=("torch", "transformers", "safetensors"),
    extra="train",
    imports=("rollart_hpc.engines.torch.engine",),
    is_forkable=True,
    can=frozenset({"deterministic", "direct"}),
    raw="rollart_hpc.bench.heavy.raw_torch:RawTorch",
)
