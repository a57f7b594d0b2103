"""The command `launchers/devcluster`. Owns its arguments, output and exit codes."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from rollart_hpc.devcluster import cluster as clusters
from rollart_hpc.devcluster.layout import default_directory
from rollart_hpc.devcluster.topology import DEFAULT, MOST_NODES
from rollart_hpc.errors import RollartError, UserError
from rollart_hpc.launch.slurm.commands import clean_environment

EPILOG = """a session:
  launchers/devcluster up
  eval "$(launchers/devcluster env)"
  sinfo
  launchers/devcluster down

exit codes: 0 success, 1 (status) no cluster is up, 2 the request is wrong, 3 a problem of the machine
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="devcluster",
        description="A real Slurm with virtual nodes and fake GPUs on this machine. Needs root on Debian or Ubuntu.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    up = _add(commands, "up", "start it; installs munge and Slurm with apt-get if they are missing")
    kinds = "its nodes and partitions: a name in slurm/devcluster/layouts, or a TOML file like those (%(default)s)"
    up.add_argument("--layout", default=DEFAULT, metavar="NAME|FILE", help=kinds)
    many = f"nodes in all, up to {MOST_NODES}, shared out as in the layout; default: as many as it says"
    up.add_argument("--nodes", type=int, default=0, metavar="N", help=many)
    up.add_argument("--accounting", action="store_true", help="with sacct and limits: slurmdbd and MariaDB")
    up.add_argument("--user", action="append", default=[], metavar="NAME", help="an ordinary user who may run jobs")
    reach = "a directory that ordinary users must reach, below one that is closed to them"
    up.add_argument("--expose", action="append", default=[], type=Path, metavar="PATH", help=reach)
    _add(commands, "down", "end its daemons and every process of its jobs, remove its directory")
    _add(commands, "env", 'print the variables a shell needs: eval "$(launchers/devcluster env)"')
    _add(commands, "status", "show its nodes and jobs")
    inside = _add(commands, "exec", "run a command inside, as one of its users or as root")
    inside.add_argument("--user", default="", metavar="NAME", help="default: root")
    inside.add_argument("inner", metavar="-- COMMAND", nargs="+")
    return parser


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, help: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
    parser.add_argument("--dir", type=Path, default=default_directory(), help="its directory (%(default)s)")
    return parser


def up(args: argparse.Namespace) -> int:
    made = clusters.up(
        args.dir,
        layout_name=args.layout,
        node_count=args.nodes,
        accounting=args.accounting,
        user_names=args.user,
        exposed=args.expose,
    )
    option = "" if args.dir == default_directory() else f" --dir {shlex.quote(str(args.dir))}"
    print(f"a development cluster is up in {made.files.path}", file=sys.stderr)
    print(f'  use it:  eval "$(launchers/devcluster env{option})"\n  end it:  launchers/devcluster down{option}',
          file=sys.stderr)  # fmt: skip
    return 0


def down(args: argparse.Namespace) -> int:
    cluster = clusters.find(args.dir)
    if cluster:
        cluster.down()
        print(f"the development cluster in {args.dir} has ended", file=sys.stderr)
    elif not clusters.clear(args.dir):
        print(f"no development cluster is up in {args.dir}", file=sys.stderr)
    return 0


def env(args: argparse.Namespace) -> int:
    for name, value in _running(args.dir).environment.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def status(args: argparse.Namespace) -> int:
    cluster = clusters.find(args.dir)
    if cluster is None:
        print(f"no development cluster is up in {args.dir}")
        return 1
    print(f"up in {args.dir}")
    for row in cluster.slurm.table("sinfo", {"partition": "%P", "state": "%T", "nodes": "%N"}):
        print(f"  {row['partition']:<8} {row['state']:<10} {row['nodes']}")
    jobs = cluster.slurm.table("squeue", {"id": "%i", "state": "%T", "name": "%j"})
    for row in jobs:
        print(f"  job {row['id']} {row['state']} {row['name']}")
    if not jobs:
        print("  no jobs")
    return 0


def run_inside(args: argparse.Namespace) -> int:
    cluster = _running(args.dir)
    command = cluster.command(args.inner, user=args.user, directory=None if args.user else Path.cwd())
    os.execvpe(command[0], command, clean_environment())


def _running(directory: Path) -> clusters.Cluster:
    cluster = clusters.find(directory)
    if cluster is None:
        raise UserError(f"no development cluster is up in {directory}", "start one: launchers/devcluster up")
    return cluster


def main(arguments: list[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    command = {"up": up, "down": down, "env": env, "status": status, "exec": run_inside}[args.command]
    try:
        return command(args)
    except RollartError as error:
        print(f"devcluster: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
