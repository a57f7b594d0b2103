"""`cancel` and `join`: act on a run that another process supervises, on this machine or on a cluster."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

from rollart_hpc.config.pools import engine_of
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import UserError, command_line
from rollart_hpc.hardware import CPU
from rollart_hpc.launch.agents.address import read_address
from rollart_hpc.launch.agents.agent import make_guest, offer_node
from rollart_hpc.launch.command import environment, role_command, variables
from rollart_hpc.launch.launcher import Launcher, launcher_of_run
from rollart_hpc.launch.plan import Plan, Proc
from rollart_hpc.launch.plan_file import read_plan
from rollart_hpc.launch.preloaded import preloaded_kinds, preloaded_roles
from rollart_hpc.launch.process import Order
from rollart_hpc.rundir import RunDir, open_run_dir
from rollart_hpc.types import Role
from rollart_hpc.vocabulary import RunState


def cancel(args: argparse.Namespace) -> int:
    """Asks the run to end and waits until it has."""
    run = open_run_dir(args.run_dir)
    state = launcher_of_run(run).cancel(run, lambda text: print(text, file=sys.stderr, flush=True))
    print(f"{state}; resume it with: {command_line('resume', run.path)}" if state.can_resume else state)
    return 0


def join(args: argparse.Namespace) -> int:
    """Replaces this process with the worker. Output goes to this terminal; Ctrl-C ends the worker, not the run."""
    run = open_run_dir(args.run_dir)
    launcher = launcher_of_run(run)
    config = read_resolved(run.config)
    if args.role is None:
        return _offer_node(run, args, config, launcher)
    _need_running(run, launcher)
    if args.role == "engine" and launcher.is_cluster and config.weights.transport == "staged":
        raise UserError(
            "an engine can't join a run on a cluster alone: staged weights reach only nodes with a relay",
            f"offer the whole node, without a role: {command_line('join', run.path)}",
        )
    proc = _new_proc(cast(Role, args.role), args.pool, config, read_plan(run))
    proc = replace(proc, name=args.name or proc.name)
    threads = engine_of(config, proc.pool).threads if proc.role == "engine" else 1
    command = role_command(Order(proc, run.last_attempt(), Path(os.devnull)), run)
    command += _leaving(args)
    print(f"joining {run.path} as {proc.name}", file=sys.stderr, flush=True)
    os.execve(command[0], command, environment(variables(threads)))


def _offer_node(run: RunDir, args: argparse.Namespace, config: RunConfig, launcher: Launcher) -> int:
    """Be the agent of this machine: the supervisor decides what runs here."""
    if not launcher.is_cluster:
        raise UserError(f"{run.path} is a run on one machine", "join it as one worker: env, engine or reward")
    known = read_address(run)
    if known is None or known.is_over:
        raise UserError(f"{run.path} is not running", f"see how it is: {command_line('status', run.path)}")
    if args.name or args.idle_s is not None or args.live_s is not None:
        raise UserError("--name, --idle-s and --live-s are for a single worker", "name its role: env, engine or reward")
    if args.pool and args.pool not in config.pools:
        raise UserError(f"the run has no pool {args.pool!r}", f"--pool {' or --pool '.join(config.pools)}")
    kinds = preloaded_kinds(config, ("engine",)) if preloaded_roles(config) else ()
    print(f"offering this node to {run.path}; Ctrl-C takes it away again", file=sys.stderr, flush=True)
    return offer_node(run, make_guest(args.pool), kinds, config.launch.wait_s)


def _leaving(args: argparse.Namespace) -> list[str]:
    given = {"--idle-s": args.idle_s, "--live-s": args.live_s}
    chosen = {option: value for option, value in given.items() if value is not None}
    if chosen and args.role != "reward":
        raise UserError(f"{' and '.join(chosen)} is for reward workers only", f"leave it out for role {args.role}")
    return [f"{option}={value}" for option, value in chosen.items()]


def _need_running(run: RunDir, launcher: Launcher) -> None:
    """As its launcher sees it: a process id says nothing about a run on another host."""
    state = launcher.watch(run).look().state
    if state not in (RunState.STARTING, RunState.RUNNING):
        fix = f"resume it: {command_line('resume', run.path)}" if state.is_over else "wait until it runs"
        raise UserError(f"{run.path} is not running: it is {state}", fix)


def _new_proc(role: Role, pool: str, config: RunConfig, plan: Plan) -> Proc:
    tag = f"join-{secrets.token_hex(3)}"
    if role != "engine":
        if pool:
            raise UserError(f"--pool {pool} is for engines only", f"leave it out for a worker of role {role}")
        return Proc(f"{role}-{tag}", role, CPU, socket.gethostname())
    open_pools = _pools_with_weights(config, plan)
    fix = f"--pool {' or --pool '.join(open_pools)}"
    if pool not in config.pools:
        raise UserError(f"an engine needs a pool of the run, got {pool!r}", fix)
    if pool not in open_pools:
        raise UserError(f"pool {pool} has no relay in this run, so an engine there would never get weights", fix)
    return Proc(f"engine-{pool}-{tag}", role, pool, pool, pool=pool)


def _pools_with_weights(config: RunConfig, plan: Plan) -> list[str]:
    """Staged weights reach only the nodes that had a relay when the run started."""
    if config.weights.transport != "staged":
        return list(config.pools)
    nodes = {relay.node for relay in plan.of("relay")}
    return [pool for pool in config.pools if pool in nodes]
