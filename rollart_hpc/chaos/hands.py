"""The hands of chaos on the hosts of a run. Owns their processes: one per host, started when it is first needed.

The launcher says how a command gets to a host. A hand that is gone is started again; what it had stopped it has let go.
"""

from __future__ import annotations

import select
import subprocess
import time
from contextlib import suppress

import msgspec

from rollart_hpc.chaos.acts import Act
from rollart_hpc.chaos.hand import Answer, Request
from rollart_hpc.errors import SiteError
from rollart_hpc.launch.command import environment, python
from rollart_hpc.launch.launcher import Launcher
from rollart_hpc.launch.slurm.commands import clean_environment
from rollart_hpc.rundir import RunDir

ANSWER_S = 60.0  # a job step may take long to start
CLOSE_S = 10.0


class Refusal(SiteError):
    """The act was not done."""


class Hands:
    def __init__(self, run: RunDir, launcher: Launcher) -> None:
        self._run, self._launcher = run, launcher
        self._hands: dict[str, subprocess.Popen[bytes]] = {}
        self._number = 0

    def do(self, act: Act) -> str:
        """Returns what was done, in words."""
        victim = act.victim
        self._number += 1
        request = Request(
            self._number, act.kind, victim.role, victim.pid, act.seconds, victim.node, victim.host, act.point
        )
        hand = self._hand(victim.host)
        assert hand.stdin is not None
        try:
            hand.stdin.write(msgspec.json.encode(request) + b"\n")
            hand.stdin.flush()
        except OSError:
            raise self._lost(victim.host) from None
        answer = self._answer(victim.host, hand)
        if answer.error:
            raise Refusal(answer.error)
        return answer.detail

    def close(self) -> None:
        """Every stopped process goes on before this returns."""
        for hand in self._hands.values():
            with suppress(OSError):
                assert hand.stdin is not None
                hand.stdin.close()
        for hand in self._hands.values():
            try:
                hand.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                hand.terminate()
                hand.wait()
        self._hands.clear()

    def _hand(self, host: str) -> subprocess.Popen[bytes]:
        hand = self._hands.get(host)
        if hand is None or hand.poll() is not None:
            command = python("-m", "rollart_hpc.chaos.hand", "--run-dir", str(self._run.path))
            hand = self._hands[host] = subprocess.Popen(
                self._launcher.reach(self._run, host, command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=clean_environment(environment()),
                cwd=self._run.path,
                start_new_session=True,  # Ctrl-C is for the command, which then closes its hands
            )
        return hand

    def _answer(self, host: str, hand: subprocess.Popen[bytes]) -> Answer:
        assert hand.stdout is not None
        deadline_s = time.monotonic() + ANSWER_S
        poll = select.poll()
        poll.register(hand.stdout, select.POLLIN)
        while poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
            line = hand.stdout.readline()
            if not line:
                break
            answer = msgspec.json.decode(line, type=Answer)
            if answer.number == self._number:
                return answer
        raise self._lost(host)

    def _lost(self, host: str) -> Refusal:
        hand = self._hands.pop(host)
        hand.kill()
        hand.wait()
        return Refusal(f"can't act on {host or 'this machine'}: its helper process does not answer")
