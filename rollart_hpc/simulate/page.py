"""The comparison page: one HTML file that opens offline, like the report. Owns its sections; reads no file."""

from __future__ import annotations

from html import escape

from rollart_hpc.observe.charts import Stack, bars, number
from rollart_hpc.observe.page import card, page, pair, section, table
from rollart_hpc.simulate.figures import Compared

_COLOURS = {"prefill": "prefill", "decode": "decode", "install": "weights", "idle": "idle"}


def comparison_page(title: str, found: list[Compared], notes: list[str]) -> str:
    best = min(found, key=lambda each: each.mean("step_s"))
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return page(
        f"{title} · simulated",
        [
            f'<header><h1>{escape(title)}</h1><span class="badge busy">simulated</span></header>'
            '<p class="sub">virtual time, the same core as a real run</p>',
            _cards(best),
            section("Modes", "means over seeds; ± is half the distance between the extremes", modes_table(found)),
            pair(_trainer(found), _tokens(found)),
            _pools(found),
            section("What was assumed", "figures that no file has", f"<ul>{listed}</ul>"),
        ],
    )


def _cards(best: Compared) -> str:
    cards = [
        card("Fastest mode", best.mode, f"bound by {best.outcomes[0].bound}"),
        card("Time per step", f"{best.mean('step_s'):.0f} s", f"± {best.spread('step_s'):.0%} over seeds"),
        card("Sampled", f"{number(best.mean('tokens_per_s'))} tok/s", "by all engines"),
        card("GPU-hours per step", f"{best.mean('gpu_hours_per_step'):.2f}", "of the nodes in the plan"),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def modes_table(found: list[Compared]) -> str:
    heads = [
        "mode",
        "s per step",
        "over the first",
        "tok/s",
        "trainer busy",
        "staleness",
        "GPU-h per step",
        "cost",
        "bound by",
    ]
    first = found[0].mean("step_s")
    rows = [
        [
            each.mode,
            f"{each.mean('step_s'):.1f} ± {each.spread('step_s'):.0%}",
            f"{first / each.mean('step_s'):.2f}x",
            number(each.mean("tokens_per_s")),
            f"{each.mean('train_s') / each.mean('step_s'):.0%}",
            f"{each.mean('staleness'):.2f}",
            f"{each.mean('gpu_hours_per_step'):.2f}",
            f"{each.mean('cost_per_step'):.2f}" if each.mean("cost_per_step") else "",
            each.outcomes[0].bound,
        ]
        for each in found
    ]
    return table(heads, rows)


def _trainer(found: list[Compared]) -> str:
    stacks = [
        Stack(each.mode, [("trains", each.mean("train_s"), "train"), ("waits", each.mean("wait_s"), "wait")])
        for each in found
    ]
    return section("Time of the trainer", "seconds per step", bars(stacks, unit="s"))


def _tokens(found: list[Compared]) -> str:
    heads = ["mode", "cached prompts", "rebuilt / sampled", "packing", "dropped trajectories"]
    rows = [
        [
            each.mode,
            f"{each.mean('cached'):.0%}",
            f"{each.mean('rebuilt'):.2f}",
            f"{each.mean('packing'):.0%}",
            ", ".join(f"{reason} {count}" for reason, count in each.outcomes[0].dropped.items()) or "none",
        ]
        for each in found
    ]
    return section("Tokens and losses", "share of prompt tokens found in KV; tokens computed again", table(heads, rows))


def _pools(found: list[Compared]) -> str:
    stacks = [
        Stack(f"{each.mode}, {pool}", [(key, each.share(pool, key), colour) for key, colour in _COLOURS.items()])
        for each in found
        for pool in each.outcomes[0].pools
    ]
    return section("Time of the engines", "share of the time of all engines of a pool", bars(stacks, share=True))
