"""`bench`: real runs side by side, reported as ratios."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec

from rollart_hpc.bench import engine as bench_engine
from rollart_hpc.bench import hub as bench_hub
from rollart_hpc.bench import modes as bench
from rollart_hpc.bench import packing as bench_packing
from rollart_hpc.bench import simulate as bench_simulate
from rollart_hpc.bench import trainer as bench_trainer
from rollart_hpc.bench import weights as bench_weights
from rollart_hpc.config.modes import Mode
from rollart_hpc.errors import SiteError
from rollart_hpc.launch.leader import find_mpiexec


def modes(args: argparse.Namespace) -> int:
    settings = bench.Settings(args.mean, tuple(args.std), args.steps, args.repeats, args.model)
    num_runs = len(Mode) * len(settings.stds_s) * settings.repeats
    print(f"{num_runs} runs of {settings.steps} steps each, one after the other", file=sys.stderr)
    rows = bench.bench_modes(settings, lambda text: print(text, file=sys.stderr, flush=True))
    print(bench.as_json(settings, rows) if args.json else bench.table(rows))
    return 0


def engine(args: argparse.Namespace) -> int:
    settings = bench_engine.Settings(args.engine, args.model, args.batch, args.prompt, args.new, args.pairs)
    result = bench_engine.bench_engine(settings, lambda text: print(text, file=sys.stderr, flush=True))
    print(result.as_json() if args.json else result.as_text())
    return 0


def hub(args: argparse.Namespace) -> int:
    settings = bench_hub.Settings(bench_hub.sizes_of(args.engines, args.slots), args.seconds, not args.no_transcripts)
    rows = bench_hub.bench_hub(settings, lambda text: print(text, file=sys.stderr, flush=True))
    print(bench_hub.as_json(settings, rows) if args.json else bench_hub.table(rows))
    return 0


def packing(args: argparse.Namespace) -> int:
    settings = bench_packing.Settings(tuple(args.ranks), args.groups, args.group_size, args.microbatch, args.longest)
    rows = bench_packing.bench_packing(settings, lambda text: print(text, file=sys.stderr, flush=True))
    print(bench_packing.as_json(settings, rows) if args.json else bench_packing.table(settings, rows))
    return 0


def simulate(args: argparse.Namespace) -> int:
    sizes = tuple(args.engines)
    rows = bench_simulate.bench_simulate(sizes, args.seconds, lambda text: print(text, file=sys.stderr, flush=True))
    print(bench_simulate.as_json(rows) if args.json else bench_simulate.table(rows))
    return 0


def trainer(args: argparse.Namespace) -> int:
    settings = bench_trainer.Settings(args.model, args.samples, args.tokens, args.microbatch, args.pairs)
    result = bench_trainer.bench_trainer(settings, lambda text: print(text, file=sys.stderr, flush=True))
    print(result.as_json() if args.json else result.as_text())
    return 0


def weights(args: argparse.Namespace) -> int:
    settings = bench_weights.Settings(
        tuple(args.collectives or _collectives()), args.total_mb, args.bucket_mb, args.pairs
    )
    rows, exposed = bench_weights.bench_weights(settings, lambda text: print(text, file=sys.stderr, flush=True))
    print(bench_weights.as_json(settings, rows, exposed) if args.json else bench_weights.table(rows, exposed))
    return 0


def _collectives() -> list[str]:
    """gloo, and MPI if it is installed."""
    try:
        find_mpiexec()
    except SiteError:
        return ["gloo"]
    return ["gloo", "mpi"] if find_spec("mpi4py") else ["gloo"]
