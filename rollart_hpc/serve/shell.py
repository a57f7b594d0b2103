"""What all pages share: head, navigation, links. Owns how a page of the server differs from the offline report."""

from __future__ import annotations

from html import escape
from urllib.parse import quote, urlencode

from rollart_hpc.observe.page import STYLE, colour_rules

MOST_CHARS = 200_000  # of a text on a page


def shell(title: str, root: str, live: str, trail: list[tuple[str, str]], content: str) -> str:
    """`root`: the way to the page of all runs, like `../../`. `live`: the run whose changes reload it; "" = none.

    `trail`: text and address of what is above, and then beside, this page.
    """
    links = " ".join(f'<a href="{escape(address)}">{escape(text)}</a>' for text, address in trail)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · rollart-hpc</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{root}assets/app.css">
<script src="{root}assets/app.js" defer></script>
</head>
<body data-live="{escape(live)}" data-root="{root}">
<nav><a href="{root}" accesskey="h">Runs</a> {links}<span id="pulse" role="status"></span></nav>
<main id="live">
{content}
</main>
<div id="tip" role="tooltip"></div>
</body>
</html>
"""


def stylesheet(own: str) -> str:
    return STYLE + colour_rules() + own


def link(address: str, text: str, **query: object) -> str:
    return f'<a href="{escape(to(address, **query))}">{escape(text)}</a>'


def to(address: str, **query: object) -> str:
    """An address relative to the page."""
    known = {key: value for key, value in query.items() if value not in (None, "")}
    return address + (f"?{urlencode(known)}" if known else "")


def part(name: str) -> str:
    """One part of a path."""
    return quote(name, safe="")


def text(content: str) -> str:
    """As HTML; the middle of a very long text is left out, and that is said."""
    if len(content) <= MOST_CHARS:
        return escape(content)
    half = MOST_CHARS // 2
    left_out = len(content) - 2 * half
    return f"{escape(content[:half])}\n… {left_out} characters are not shown …\n{escape(content[-half:])}"


def rows(heads: list[str], lines: list[list[str]], *, numbers: tuple[int, ...] = ()) -> str:
    """A table of HTML cells. `numbers`: right-aligned columns."""

    def row(tag: str, cells: list[str]) -> str:
        own = (f"<{tag}{' class=n' if i in numbers else ''}>{cell}</{tag}>" for i, cell in enumerate(cells))
        return f"<tr>{''.join(own)}</tr>"

    body = "".join(row("td", cells) for cells in lines)
    return f'<div class="scroll"><table>{row("th", list(map(escape, heads)))}{body}</table></div>'
