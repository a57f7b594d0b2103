"""Environments for tests, good and bad. Imported by reference, so this file knows nothing of the package."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Turn:
    observation: str
    done: bool


class Counting:
    """Says how many turns it saw. The response may be a command."""

    def __init__(self, turns: int = 3, note: str = "") -> None:
        self.turns = turns
        self.note = note
        self.num_resets = 0

    def reset(self, seed: int) -> str:
        self.seed = seed
        self.turn = 0
        self.num_resets += 1
        if seed < 0:
            raise ValueError("a seed below 0")
        if seed == 1_000_000:
            time.sleep(3600)
        if seed == 2_000_000:
            os._exit(7)
        return f"seed {seed} pid {os.getpid()} resets {self.num_resets}"

    def step(self, response: str) -> Turn:
        self.turn += 1
        command, _, argument = response.partition(" ")
        if command == "raise":
            raise RuntimeError("told to")
        if command == "exit":
            os._exit(9)
        if command == "quit":
            sys.exit("leaving")
        if command == "spin":
            while True:
                pass
        if command == "sleep":
            time.sleep(float(argument))
        if command == "number":
            return Turn(42, False)  # type: ignore[arg-type]
        if command == "big":
            return Turn("x" * int(argument), False)
        if command == "garbage":
            os.write(3, b"\x00\x00\x00\x03abc")
            time.sleep(3600)
        if command == "orphan":
            child = subprocess.Popen(["sleep", "3600"])
            return Turn(str(child.pid), False)
        if command == "hangup":
            os.close(3)
            time.sleep(3600)
        if command == "look":
            return Turn(repr(sight()), False)
        return Turn(f"turn {self.turn} {len(response)} {random.random()}", self.turn >= self.turns)

    def outcome(self) -> dict[str, Any]:
        return {"turns": self.turn, "seed": np.int64(self.seed), "path": np.arange(2)}

    def close(self) -> None:
        if self.note:
            Path(self.note).write_text("closed")


class Unsendable(Counting):
    def outcome(self) -> dict[str, Any]:
        return {"object": object()}


class Unmakeable:
    def __init__(self) -> None:
        raise RuntimeError("can't be made")


class Printing(Counting):
    """Prints its response, or `flood N`: N lines."""

    def step(self, response: str) -> Turn:
        command, _, argument = response.partition(" ")
        if command == "flood":
            for _ in range(int(argument)):
                os.write(1, b"x" * 99 + b"\n")
        else:
            print(response)
        return Turn("printed", False)


def sight() -> dict[str, Any]:
    """What an environment sees of the run."""
    return {
        "variables": dict(os.environ),
        "cwd": os.getcwd(),
        "descriptors": {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
                        if os.path.exists(f"/proc/self/fd/{name}") or name == "3"},
    }  # fmt: skip
