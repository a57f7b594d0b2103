"""rollart-hpc: multi-task agentic reinforcement learning for LLMs on Slurm clusters with mixed hardware."""

__version__ = "0.1.0"
