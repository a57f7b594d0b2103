"""The trainer `megatron`: megatron-core's GPTModel, split over tensor, pipeline and data parallel ranks.

    trainer      steps: schedules, gradients, optimizer        families   what of a Hugging Face config is which of ours
    model        the GPTModel and its packed forward           layout     which weight lies where, and under which name
    vocabulary   log-probs over a split vocabulary             exchange   weights in from files, out to rank 0
    attention    packed attention without Transformer Engine   checkpoint dist_checkpointing
    cpu_shim     what makes megatron-core run on a CPU: for tests, never on a node with GPUs

Weights are exchanged with Hugging Face by `layout` and `exchange` and not by a bridge library: megatron-bridge 0.3 asks
for transformers below 5 and for CUDA builds of Transformer Engine, mamba and others; mbridge 0.15 installs, but builds
its models from Transformer Engine's layers only and sends every weight to every rank. What is needed here is a table of
a dozen names.
"""
