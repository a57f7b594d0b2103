"""The trainer `megatron`: megatron-core's GPTModel, split over tensor, pipeline and data parallel ranks.

    trainer      steps: schedules, gradients, optimizer        families   Hugging Face configs in megatron's terms
    model        the GPTModel and its packed forward           layout     the place and name of every weight
    vocabulary   log-probs over a split vocabulary             exchange   weights in from files, out to rank 0
    attention    packed attention without Transformer Engine   checkpoint dist_checkpointing
    cpu_shim     patches to run megatron-core on a CPU: for tests, never on a node with GPUs

`layout` and `exchange` convert weights from and to Hugging Face. We use no bridge library for that: megatron-bridge 0.3
needs transformers below 5 and CUDA builds of Transformer Engine, mamba and others; mbridge 0.15 installs, but builds
its models only from Transformer Engine's layers and sends every weight to every rank. A table of a dozen names is
enough here.
"""
