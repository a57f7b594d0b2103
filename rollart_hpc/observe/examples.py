"""A few trajectories for the offline report. Owns which ones, and how they look there.

Of the newest shards only, so a report of a run of any size reads little.
"""

from __future__ import annotations

from html import escape

import msgspec

from rollart_hpc.observe.page import section
from rollart_hpc.observe.plays import PLAYS, Play
from rollart_hpc.observe.shards import lines, shards
from rollart_hpc.observe.transcripts import extremes
from rollart_hpc.rundir import RunDir

NEWEST_SHARDS = 4
OF_A_KIND = 3  # of each task: the best and the worst
MOST_CHARS = 4000  # of a message


def examples(run: RunDir) -> list[Play]:
    """The best and the worst of each task, by task and reward."""
    decoder = msgspec.json.Decoder(Play)
    by_task: dict[str, dict[str, Play]] = {}
    for path in shards(run.transcripts, PLAYS)[-NEWEST_SHARDS:]:
        for line in lines(path, lambda _: None):
            try:
                play = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            play.samples = []  # many of them would fill the memory
            by_task.setdefault(play.task, {})[play.trajectory] = play
    found: list[Play] = []
    for _, own in sorted(by_task.items()):
        worst, best = (extremes(own.values(), OF_A_KIND, best=best) for best in (False, True))
        chosen = {play.trajectory: play for play in (*worst, *best)}
        found += sorted(chosen.values(), key=lambda play: play.reward)
    return found


def shown(plays: list[Play]) -> str:
    """A fold for each; empty without any."""
    sub = f"the worst and the best of each task, up to {OF_A_KIND} each, among the newest; see rollart-hpc transcripts"
    return section("Trajectories", sub, "".join(map(_fold, plays))) if plays else ""


def _fold(play: Play) -> str:
    head = f"{play.task}: reward {play.reward:.3g}{'' if play.success else ', failed'} ({play.trajectory})"
    parts = ((message.get("role", ""), message.get("content", "")) for message in play.messages)
    said = "".join(f"<h3>{escape(role)}</h3><pre>{_clipped(content)}</pre>" for role, content in parts)
    return f"<details><summary>{escape(head)}</summary>{said}</details>"


def _clipped(content: str) -> str:
    left_out = len(content) - MOST_CHARS
    more = f"\n… {left_out} more characters" if left_out > 0 else ""
    return escape(content[:MOST_CHARS] + more)
