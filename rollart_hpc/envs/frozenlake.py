"""FrozenLake: many short turns, so most tokens are observations (prefill-heavy). Owns its text.

gymnasium makes the map from the seed. Every observation says where the agent is and what is next to it; "trail"
marks cells where it has been:

    row 0 column 1 left trail down ice right hole up wall    ->    down

For models that understand English, `explained` puts the rules before the first turn. The last word of an answer is
then the move, so the model may think before it.
"""

from __future__ import annotations

import random
from typing import Any

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from rollart_hpc.envs.contract import Turn

MOVES = {"left": (0, 0, -1), "down": (1, 1, 0), "right": (2, 0, 1), "up": (3, -1, 0)}
RULES = (
    "You walk over a frozen lake from the upper left corner to the goal in the lower right one. Holes end the walk. "
    "Each turn tells where you stand and what lies on your four sides. End your answer with one of the words left, "
    "down, right, up.\n"
)
CELLS = {"H": "hole", "G": "goal", "F": "ice", "S": "ice"}


class FrozenLake:
    def __init__(self, size: int = 4, frozen: float = 0.8, max_turns: int = 10, explained: bool = False) -> None:
        self.size, self.frozen, self.max_turns, self.explained = size, frozen, max_turns, explained

    def reset(self, seed: int) -> str:
        self.map: list[str] = generate_random_map(size=self.size, p=self.frozen, seed=seed)
        self.env = FrozenLakeEnv(desc=self.map, is_slippery=False)
        self.env.reset(seed=seed)
        self.at, self.trail, self.turns, self.invalid = (0, 0), {(0, 0)}, 0, 0
        self.reached = self.fell = False
        self.distances = self._distances()
        self.first = self.best = self.distances[(0, 0)]
        return RULES * self.explained + self._observation()

    def step(self, response: str) -> Turn:
        self.turns += 1
        word = _last_word(response) if self.explained else response.strip()
        if word in MOVES:
            self._move(MOVES[word][0])
        else:
            self.invalid += 1
        done = self.reached or self.fell or self.turns >= self.max_turns
        return Turn(self._observation(), done)

    def outcome(self) -> dict[str, Any]:
        progress = 1 - self.best / self.first
        return {"reached": self.reached, "fell": self.fell, "invalid": self.invalid, "progress": progress}

    def close(self) -> None:
        """Nothing to release."""

    @staticmethod
    def legal_answer(rng: random.Random) -> str:
        """Correct in form, random in content: the base model learns the format from such answers."""
        return rng.choice(list(MOVES))

    def _move(self, action: int) -> None:
        state, reward, _, _, _ = self.env.step(action)
        self.at = divmod(int(state), self.size)
        self.trail.add(self.at)
        self.reached = float(reward) > 0
        self.fell = self.map[self.at[0]][self.at[1]] == "H"
        if not self.fell:
            self.best = min(self.best, self.distances.get(self.at, self.first))

    def _observation(self) -> str:
        row, column = self.at
        around = [f"{name} {self._cell(row + dr, column + dc)}" for name, (_, dr, dc) in MOVES.items()]
        return " ".join([f"row {row} column {column}", *around])

    def _cell(self, row: int, column: int) -> str:
        if not (0 <= row < self.size and 0 <= column < self.size):
            return "wall"
        cell = CELLS[self.map[row][column]]
        return "trail" if cell == "ice" and (row, column) in self.trail else cell

    def _distances(self) -> dict[tuple[int, int], int]:
        """Steps to the goal over safe cells."""
        goal = (self.size - 1, self.size - 1)
        distances, queue = {goal: 0}, [goal]
        for at in queue:
            for _, dr, dc in MOVES.values():
                near = (at[0] + dr, at[1] + dc)
                if near not in distances and self._cell_is_safe(*near):
                    distances[near] = distances[at] + 1
                    queue.append(near)
        return distances

    def _cell_is_safe(self, row: int, column: int) -> bool:
        return 0 <= row < self.size and 0 <= column < self.size and self.map[row][column] != "H"


def _last_word(response: str) -> str:
    words = response.lower().split()
    return words[-1].strip(".,!*\"'") if words else ""
