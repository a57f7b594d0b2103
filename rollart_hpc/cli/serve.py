"""`serve`: the live page of runs, for a browser on this machine or at the other end of an ssh tunnel."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
from pathlib import Path

from rollart_hpc.cli.status import site_roots
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.rundir import run_root
from rollart_hpc.serve.library import Library
from rollart_hpc.serve.server import Server


def serve(args: argparse.Namespace) -> int:
    places = [Path(args.place).absolute()] if args.place else [run_root(), *site_roots()]
    if args.place and not places[0].is_dir():
        raise UserError(f"{places[0]} is not a directory", "name a run directory, or a directory of runs")
    try:
        server = Server(Library(places), args.port)
    except OSError as error:
        raise SiteError(f"can't listen on port {args.port}: {error.strerror}", "choose another --port") from None
    print(f"{server.url}", flush=True)
    if os.environ.get("SSH_CONNECTION"):
        host, port = socket.getfqdn(), server.server_port
        print(f"from your own machine: ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{host}", flush=True)
    print("whoever has this address can read these runs; Ctrl-C ends the server", flush=True)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        server.is_closing.set()
        server.server_close()
    return 0
