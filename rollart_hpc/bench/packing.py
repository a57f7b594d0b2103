"""Compares the packing of streamed groups with the packing of a whole batch. Owns the workloads; the plans are the real
ones (`trainers.planning`, `trainers.merging`). Nothing is trained: efficiencies are computed from plans, not timed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import msgspec

from rollart_hpc.errors import UserError
from rollart_hpc.trainers.merging import Balanced
from rollart_hpc.trainers.planning import Planner

EVEN_TOKENS = 50_000  # about the value for Qwen3-8B (`trainers.flops`)

Groups = list[list[int]]

WORKLOADS: dict[str, Callable[[random.Random, int], int]] = {
    "long tail": lambda rng, longest: _within(longest, longest * 0.25 * rng.lognormvariate(0, 0.6)),
    "heavy tail": lambda rng, longest: _within(longest, longest * 0.08 * rng.lognormvariate(0, 1.3)),
    "1 in 10 long": lambda rng, longest: longest if rng.random() < 0.1 else _within(longest, longest * 0.05),
    "equal": lambda rng, longest: _within(longest, longest * 0.3),
}
ORDERS: dict[str, Callable[[Groups], Groups]] = {
    "as drawn": lambda groups: groups,
    "short first": lambda groups: sorted(groups, key=max),
    "long first": lambda groups: sorted(groups, key=max, reverse=True),
}


class Row(msgspec.Struct):
    """Planned share of time that ranks are busy. `streamed` is the worst order of arrival. `early` is the share of the
    work trained before the last group arrives, in that order."""

    workload: str
    ranks: int
    by_group: float  # every group packed separately
    streamed: float
    whole: float
    early: float
    micro_batches: int  # per rank, streamed
    micro_batches_whole: int


@dataclass(frozen=True)
class Settings:
    ranks: tuple[int, ...] = (1, 8, 32, 64, 128, 512)
    groups: int = 64
    group_size: int = 8
    microbatch_tokens: int = 32768
    longest: int = 32768

    def __post_init__(self) -> None:
        numbers = (*self.ranks, self.groups, self.group_size, self.microbatch_tokens, self.longest)
        if not self.ranks or min(numbers) < 1:
            raise UserError(f"{self} is not a valid workload", "use numbers of 1 or more")


def bench_packing(settings: Settings, say: Callable[[str], None]) -> list[Row]:
    rows = []
    for workload, draw in WORKLOADS.items():
        rng = random.Random(workload)
        groups = [[draw(rng, settings.longest) for _ in range(settings.group_size)] for _ in range(settings.groups)]
        for ranks in settings.ranks:
            planner = Planner(ranks, settings.microbatch_tokens, EVEN_TOKENS)
            rows.append(_measure(workload, planner, groups, settings.longest))
            say(
                f"  {workload}, {ranks} ranks: {rows[-1].streamed / rows[-1].whole:.3f} of the whole batch's efficiency"
            )
    return rows


def _measure(workload: str, planner: Planner, groups: Groups, longest: int) -> Row:
    lengths = list(chain(*groups))
    ideal = sum(planner.cost(length) for length in lengths) / planner.ranks
    slots = planner.plan(lengths)
    by_group = sum(planner.critical(planner.plan(group), group) for group in groups)
    worst, early = min((_streamed(planner, order(groups), longest) for order in ORDERS.values()), key=_efficiency)
    return Row(
        workload, planner.ranks, ideal / by_group, worst.efficiency, ideal / planner.critical(slots, lengths), early,
        worst.num_slots, len(slots),
    )  # fmt: skip


def _streamed(planner: Planner, groups: Groups, longest: int) -> tuple[Balanced, float]:
    """Stream the groups and train slots as they become ready. Also returns the share of work trained early."""
    waiting = Balanced(planner, longest=longest)
    trained: list[int] = []
    for group in groups[:-1]:
        waiting.add(group)
        trained += chain(*chain(*waiting.ready()))
    waiting.add(groups[-1])
    waiting.rest()
    lengths = list(chain(*groups))
    return waiting, _work(planner, (lengths[i] for i in trained)) / _work(planner, lengths)


def _efficiency(streamed: tuple[Balanced, float]) -> float:
    return streamed[0].efficiency


def _work(planner: Planner, lengths: Iterable[int]) -> int:
    return sum(planner.cost(length) for length in lengths)


def _within(longest: int, length: float) -> int:
    return min(longest, max(1, int(length)))


def table(settings: Settings, rows: list[Row]) -> str:
    tokens, longest = settings.microbatch_tokens, settings.longest
    lines = [
        f"{settings.groups} groups of {settings.group_size}, up to {longest} tokens per sample, "
        f"{tokens} per micro-batch; streamed is the worst of these orders of arrival: {', '.join(ORDERS)}",
        f"{'workload':<14}{'ranks':>6}{'by group':>10}{'streamed':>10}{'whole':>7}{'ratio':>7}{'early':>7}"
        f"{'micro-batches':>15}",
    ]
    for row in rows:
        count = f"{row.micro_batches} ({row.micro_batches_whole})"
        lines.append(
            f"{row.workload:<14}{row.ranks:>6}{row.by_group:>10.2f}{row.streamed:>10.2f}{row.whole:>7.2f}"
            f"{row.streamed / row.whole:>7.2f}{row.early:>7.2f}{count:>15}"
        )
    return "\n".join(lines)


def as_json(settings: Settings, rows: list[Row]) -> str:
    content = {"bench": "packing", "settings": settings, "rows": rows}
    return msgspec.json.format(msgspec.json.encode(content)).decode()
