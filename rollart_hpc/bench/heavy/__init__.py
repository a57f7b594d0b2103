"""The parts of benchmarks that import torch, transformers or vLLM. The rest of `bench` imports none of them."""
