"""`export`: the weights of a run as a Hugging Face directory that other tools load."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from rollart_hpc.backends.registry import find
from rollart_hpc.checkpoint_dirs import bad, check_sizes
from rollart_hpc.cli.model_card import model_card
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.errors import UserError
from rollart_hpc.extras import TRAIN, Need, need
from rollart_hpc.models.directory import made_whole
from rollart_hpc.rundir import Checkpoint, RunDir, open_run_dir


def export(args: argparse.Namespace) -> int:
    run = open_run_dir(args.run_dir)
    checkpoint = find_checkpoint(run, args.step)
    written = export_checkpoint(run, checkpoint, args.directory, only_adapters=args.adapters)
    told = {"directory": str(args.directory), "step": checkpoint.step, "digest": written.digest}
    if args.json:
        print(json.dumps({**told, "bytes": written.num_bytes}, indent=1))
        return 0
    what = "adapters" if args.adapters else "model"
    print(f"wrote the {what} of step {checkpoint.step} to {args.directory} ({written.num_bytes / 1e6:.1f} MB)")
    return 0


def find_checkpoint(run: RunDir, step: int | None) -> Checkpoint:
    """The checkpoint of `step`, or the newest one."""
    known = run.committed_checkpoints()
    if not known:
        damaged = f"; {len(bad(run))} damaged" if bad(run) else ""
        raise UserError(f"{run.path} has no checkpoint{damaged}", "wait for one, see checkpoint.every")
    if step is None:
        return known[-1]
    found = next((checkpoint for checkpoint in known if checkpoint.step == step), None)
    if found is None:
        listed = ", ".join(str(checkpoint.step) for checkpoint in known)
        raise UserError(f"{run.path} has no checkpoint of step {step}", f"choose one of {listed}")
    return found


def export_checkpoint(run: RunDir, checkpoint: Checkpoint, target: Path, *, only_adapters: bool = False) -> Any:
    """Writes `target`, complete or not at all. Returns its digest and size."""
    config = read_resolved(run.config)
    backend = find("trainer", config.trainer.kind)
    lora = [Need(("peft",), "lora")] if config.trainer.lora.rank else []
    need(TRAIN, Need(backend.modules, backend.extra, backend.install), *lora)
    head = check_sizes(checkpoint.path)
    exporting: Any = import_module("rollart_hpc.trainers.exporting")  # needs torch
    with made_whole(target, sum(dict(head.get("files", {})).values())) as scratch:
        (scratch / "model").mkdir()
        written = exporting.export(
            run,
            checkpoint,
            scratch / "model",
            only_adapters=only_adapters,
            shard_bytes=exporting.SHARD_BYTES,
        )
        card = model_card(run, config, checkpoint.step, written.digest, is_adapter=only_adapters)
        (scratch / "model" / "README.md").write_text(card)
    return written
