"""A job step: an srun that represents its processes. Owns its exit code."""

from __future__ import annotations

from collections.abc import Callable

from rollart_hpc.launch.process import LocalChild


class SrunStep(LocalChild):
    """An srun: it lives as long as its step, forwards signals and returns the exit code."""

    slurm_name = ""  # unique among all steps
    abandoned: Callable[[], None] | None = None  # cancels the step; set by who starts it

    def reap(self, timeout_s: float = 30.0) -> int:
        """The exit code of the processes. srun returns 128 + N for one that signal N killed."""
        code = super().reap(timeout_s)
        if code < 0 and self.abandoned is not None:  # srun was killed, but its step is still running
            self.abandoned()
        return 128 - code if 128 < code < 192 else code
