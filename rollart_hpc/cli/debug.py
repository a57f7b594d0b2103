"""`debug`: a run in an interactive allocation, with a prompt to inspect it. Nothing is left behind when it ends."""

from __future__ import annotations

import argparse
import cmd
import subprocess
import sys

from rollart_hpc.cli.main import main as run_command
from rollart_hpc.cli.plan import load_for_site, new_run
from rollart_hpc.errors import RollartError
from rollart_hpc.launch.launcher import Session, launcher_of, launcher_of_run
from rollart_hpc.rundir import RunDir, open_run_dir


def debug(args: argparse.Namespace) -> int:
    """Uses the current allocation if there is one. Otherwise one is requested, and this command runs inside it."""
    if args.inside:
        return _sit(open_run_dir(args.run), is_guest=False)
    loaded = load_for_site(args)
    new = new_run(loaded, args.run_dir)
    _say(f"run directory {new.run.path}")
    inside = [sys.executable, "-P", "-m", "rollart_hpc.cli", "debug", "--inside", str(new.run.path)]
    code = launcher_of(loaded.site).allocate(new, inside)
    return _sit(new.run, is_guest=True) if code is None else code


def _sit(run: RunDir, *, is_guest: bool) -> int:
    with launcher_of_run(run).session(run, is_guest=is_guest, say=_say) as session:
        Prompt(run, session).sit()
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Prompt(cmd.Cmd):
    prompt = "rollart> "

    def __init__(self, run: RunDir, session: Session) -> None:
        super().__init__()
        self._run, self._session = run, session
        self.intro = (
            f"starting all roles of {run.path} in {session.title}; the supervisor's log is {session.log}\n"
            "commands: status, logs [ROLE], attach PROCESS, exit (ends the run); anything else goes to your shell"
        )

    def sit(self) -> None:
        """Reads commands until the user exits. Ctrl-C ends only the current command."""
        while True:
            try:
                return self.cmdloop()
            except KeyboardInterrupt:
                self.intro = ""
                print()

    def do_status(self, line: str) -> None:
        """Show the status of the run."""
        run_command(["status", str(self._run.path)])

    def do_logs(self, line: str) -> None:
        """Show the logs of all processes, of one role or of one process."""
        run_command(["logs", str(self._run.path), *(["--role", line] if line else [])])

    def do_attach(self, line: str) -> None:
        """Open a shell on the node of a process."""
        try:
            subprocess.run(self._session.attach(line), check=False)
        except RollartError as error:
            print(error)

    def do_exit(self, line: str) -> bool:
        """End the run and release the nodes."""
        return True

    def do_EOF(self, line: str) -> bool:
        return True

    def emptyline(self) -> bool:
        return False

    def default(self, line: str) -> None:
        subprocess.run(line, shell=True, check=False)
