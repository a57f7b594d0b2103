"""`model`: makes model directories on machines that can't reach a model hub."""

from __future__ import annotations

import argparse
import shlex
import time

from rollart_hpc.errors import RollartError
from rollart_hpc.extras import TRAIN, Need, need
from rollart_hpc.models.directory import made_whole

TINY_BYTES = 16 << 20


def smollm2(args: argparse.Namespace) -> int:
    need(Need(("safetensors", "tokenizers"), "train"), Need(("gguf",), "model"))
    from rollart_hpc.models import smollm2 as known
    from rollart_hpc.models.from_gguf import write_directory

    began_s = time.monotonic()
    with made_whole(args.directory, known.NUM_BYTES) as scratch:
        weights = known.find_weights(args.source, scratch, _say)
        _say(f"writing {weights.name} as float32")
        (scratch / "model").mkdir()
        write_directory(weights, scratch / "model")
    return _tell(args, began_s)


def tiny(args: argparse.Namespace) -> int:
    need(TRAIN)
    from rollart_hpc.config.load import load_all
    from rollart_hpc.config.resolved import write_resolved
    from rollart_hpc.launch.base_model import prepare_model
    from rollart_hpc.rundir import RunDir

    loaded = load_all(args.run, [*args.overrides, "model.kind=tiny"], args.site)
    began_s = time.monotonic()
    with made_whole(args.directory, TINY_BYTES) as scratch:
        run = RunDir(scratch)
        write_resolved(run.config, loaded.config)
        try:
            prepare_model(run, loaded.config, _say)
        except RollartError as error:  # its fix names a log that goes with the scratch directory
            raise type(error)(error.what, f"correct the run file {args.run} or the machine, then try again") from None
    return _tell(args, began_s)


def _say(text: str) -> None:
    print(text, flush=True)


def _tell(args: argparse.Namespace, began_s: float) -> int:
    print(f"made {args.directory} in {time.monotonic() - began_s:.0f} s; to use it in a run:")
    print(f"  {shlex.join(['model.kind=directory', f'model.path={args.directory}'])}")
    return 0
