"""The page of the report: one HTML file that needs no other file and no network. Owns style and script, no content."""

from __future__ import annotations

from html import escape

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1b2330; --soft: #5d6878; --rule: #e4e7ec; --lane: #eef0f4;
  --c1: #3366d6; --c2: #d9730d; --c3: #0f8f78; --c4: #a8438f; --c5: #7a5af5; --c6: #8a7a1f;
  --prefill: #3b76e8; --decode: #16a394; --environment: #eba417; --reward: #d9489c; --train: #8657e8;
  --weights: #dc4c3f; --wait: #cdd3dc; --idle: #eceff3; --other: #a9b2c0;
  --good: #15803d; --bad: #c62828; --busy: #b45f06;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #10141b; --card: #181e27; --ink: #e6eaf0; --soft: #98a4b5; --rule: #2a323e; --lane: #1f2630;
    --c1: #7aa5ff; --c2: #f5a14b; --c3: #4cc9ae; --c4: #e28bcb; --c5: #ab96ff; --c6: #cfc063;
    --prefill: #6a9bff; --decode: #3cc4b4; --environment: #f2b942; --reward: #ee7cb9; --train: #a884ff;
    --weights: #f0766a; --wait: #3b4553; --idle: #222933; --other: #5b6675;
    --good: #4ade80; --bad: #ff7b72; --busy: #f5a14b;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 16px; margin: 0 0 2px; letter-spacing: -0.005em; }
p { margin: 0; } .sub { color: var(--soft); font-size: 13px; margin-bottom: 10px; }
header { display: flex; flex-wrap: wrap; gap: 6px 14px; align-items: baseline; margin-bottom: 4px; }
.badge { font-size: 13px; font-weight: 600; padding: 2px 10px; border-radius: 999px; border: 1px solid currentColor; }
.badge.good { color: var(--good); } .badge.bad { color: var(--bad); } .badge.busy { color: var(--busy); }
.reason { color: var(--soft); margin-bottom: 6px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(156px, 1fr)); gap: 12px; margin: 18px 0; }
.cards > div, section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.cards > div { padding: 11px 13px; }
.cards b { display: block; font-size: 20px; line-height: 1.35; white-space: nowrap; font-weight: 650;
  font-variant-numeric: tabular-nums; letter-spacing: -0.01em; }
.cards span { color: var(--soft); font-size: 12.5px; display: block; line-height: 1.35; }
.cards .name { color: var(--ink); font-weight: 550; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 14px; }
section { padding: 16px 18px 14px; margin-bottom: 14px; min-width: 0; } .grid2 > section { margin-bottom: 0; }
.grid2 { margin-bottom: 14px; }
svg { display: block; width: 100%; height: auto; } .scroll { overflow-x: auto; } .scroll > svg { min-width: 760px; }
svg.spark { height: 44px; }
text { font: 11px system-ui, sans-serif; fill: var(--soft); font-variant-numeric: tabular-nums; }
text.label { font-size: 12px; fill: var(--ink); } text.title { font-size: 11px; }
line.grid { stroke: var(--rule); stroke-width: 1; } line.step { stroke: var(--soft); stroke-width: 1; opacity: .28; }
line.mark { stroke: var(--bad); stroke-width: 1; stroke-dasharray: 3 3; opacity: .75; } .mark-head { fill: var(--bad); }
.lane { fill: var(--lane); } .line { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
.line.faint { stroke-width: 1.3; opacity: .85; } .dot { stroke: var(--card); stroke-width: 1.5; }
.hover { fill: transparent; pointer-events: all; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; margin-top: 6px; font-size: 12.5px; color: var(--soft); }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 550; color: var(--soft); font-size: 12.5px; }
th, td { padding: 5px 10px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td.n, th.n { text-align: right; } tr:last-child td { border-bottom: 0; }
.sparks { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 14px 20px; }
.sparks b { font-variant-numeric: tabular-nums; } .sparks span { color: var(--soft); font-size: 12.5px; }
.nothing { color: var(--soft); font-style: italic; padding: 18px 0; }
details summary { cursor: pointer; font-weight: 600; } details[open] summary { margin-bottom: 10px; }
pre { margin: 0; overflow-x: auto; font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
h3 { font-size: 13px; color: var(--soft); font-weight: 550; margin: 16px 0 6px; }
#tip { position: fixed; pointer-events: none; background: var(--ink); color: var(--paper); font-size: 12.5px;
  padding: 4px 9px; border-radius: 6px; max-width: 340px; opacity: 0; transition: opacity .08s; z-index: 9; }
@media print { #tip { display: none; } section { break-inside: avoid; } }
"""

COLOURS = (
    *("c1", "c2", "c3", "c4", "c5", "c6"),
    *("prefill", "decode", "environment", "reward", "train", "weights", "wait", "idle", "other"),
)

SCRIPT = """
const tip = document.getElementById("tip");
document.addEventListener("pointermove", event => {
  const found = event.target.closest && event.target.closest("[data-t]");
  tip.style.opacity = found ? 1 : 0;
  if (!found) return;
  tip.textContent = found.getAttribute("data-t");
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.min(event.clientX + 12, innerWidth - box.width - 8) + "px";
  tip.style.top = Math.max(event.clientY - box.height - 10, 8) + "px";
});
"""


def colour_rules() -> str:
    rules = (
        f".{c}{{fill:var(--{c})}} i.{c}{{background:var(--{c})}} .line.{c}{{stroke:var(--{c});fill:none}}"
        for c in COLOURS
    )
    return "\n".join(rules)


def page(title: str, parts: list[str]) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}{colour_rules()}</style>
</head>
<body>
<main>
{chr(10).join(part for part in parts if part)}
</main>
<div id="tip" role="tooltip"></div>
<script>{SCRIPT}</script>
</body>
</html>
"""


def section(title: str, sub: str, content: str) -> str:
    return f'<section><h2>{escape(title)}</h2><p class="sub">{escape(sub)}</p>{content}</section>'


def pair(*sections: str) -> str:
    return f'<div class="grid2">{"".join(sections)}</div>'


def card(name: str, value: str, note: str) -> str:
    return f'<div><span class="name">{escape(name)}</span><b>{escape(value)}</b><span>{escape(note)}</span></div>'


def table(heads: list[str], rows: list[list[str]], *, numbers: bool = True) -> str:
    """`numbers`: all columns but the first are right-aligned."""
    kind = ' class="n"' if numbers else ""
    head = "".join(f"<th{kind if i else ''}>{escape(h)}</th>" for i, h in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f"<td{kind if i else ''}>{escape(c)}</td>" for i, c in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def fold(title: str, content: str) -> str:
    return f"<section><details><summary>{escape(title)}</summary>{content}</details></section>"
