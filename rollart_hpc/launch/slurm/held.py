"""Holds the supervisor of a run in `debug` on a compute node: `python -m rollart_hpc.launch.slurm.held COMMAND...`

Runs as a step. Its standard input comes from the prompt, so it closes when the prompt ends, however that happens, and
then the supervisor is asked to save a checkpoint and end. A signal to srun could not do that: srun kills its step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from rollart_hpc.processes.lifetime import PARENT_VARIABLE

# Slurm signals the whole step, the supervisor included. A handler, unlike SIG_IGN, is not inherited.
LEFT_TO_THE_SUPERVISOR = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def main(command: list[str]) -> int:
    for number in LEFT_TO_THE_SUPERVISOR:
        signal.signal(number, lambda *_: None)
    variables = os.environ | {PARENT_VARIABLE: str(os.getpid())}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, env=variables) as supervisor:
        threading.Thread(target=_end_with_prompt, args=(supervisor,), daemon=True).start()
        return supervisor.wait()


def _end_with_prompt(supervisor: subprocess.Popen[bytes]) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    supervisor.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
