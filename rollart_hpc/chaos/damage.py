"""Damage to checkpoints. Owns which ones chaos has damaged: the last good one is never touched."""

from __future__ import annotations

from rollart_hpc.chaos.hand import flip
from rollart_hpc.chaos.hands import Refusal
from rollart_hpc.rundir import COMMITTED, RunDir


class Damage:
    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._bad: set[int] = set()  # steps

    def can_do(self) -> bool:
        """Is the newest one good, and another one too?"""
        committed = self._run.committed_checkpoints()
        good = [found for found in committed if found.step not in self._bad]
        return len(good) > 1 and good[-1] == committed[-1]

    def do(self, point: float) -> str:
        """Flip the bits of one byte of the largest file of the newest checkpoint."""
        if not self.can_do():
            raise Refusal("there is no second good checkpoint")
        newest = self._run.committed_checkpoints()[-1]
        files = [path for path in newest.path.rglob("*") if path.is_file() and path.name != COMMITTED]
        detail = flip(max(files, key=lambda path: path.stat().st_size), point)
        self._bad.add(newest.step)
        return detail
