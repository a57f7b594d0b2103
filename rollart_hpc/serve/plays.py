"""The trajectory browser: a list with filters, and one trajectory beside the others of its group. Owns both pages."""

from __future__ import annotations

from functools import lru_cache
from html import escape
from pathlib import Path

from tokenizers import Tokenizer

from rollart_hpc.errors import RollartError
from rollart_hpc.model_files import load_tokenizer
from rollart_hpc.observe.page import section
from rollart_hpc.observe.plays import Play, Tokens
from rollart_hpc.observe.transcripts import Where, with_advantages
from rollart_hpc.serve.index import Summary
from rollart_hpc.serve.library import Shelf
from rollart_hpc.serve.pages import trail
from rollart_hpc.serve.shell import link, part, rows, shell, text, to

PER_PAGE = 50
MOST_TOKENS = 20_000  # shown of a trajectory
SIBLINGS = 8  # shown side by side
_PROBABLE = -5.0  # log-probs below this all have the darkest colour
Query = dict[str, str]
_SORTS = {"newest": "newest", "best": "highest reward", "worst": "lowest reward"}
_OUTCOMES = {"": "any", "failed": "failed", "success": "success"}
_PURPOSES = {"": "any", "train": "training", "validate": "validation"}


def listing(shelf: Shelf, query: Query) -> str:
    shelf.index.refresh()
    found = shelf.index.find(where_of(query))
    found = _sorted(found, query.get("sort", ""))
    page = max(0, _whole(query.get("page", "")) or 0)
    shown = found[page * PER_PAGE : (page + 1) * PER_PAGE]
    head = f"<header><h1>Trajectories</h1></header><p class='sub'>{len(found)} of {len(shelf.index)} recorded</p>"
    notes = "".join(f'<p class="reason">{text(note)}</p>' for note in shelf.index.notes)
    lines = [_row(play) for play in shown]
    heads = ["trajectory", "task", "reward", "", "step", "turns", "tokens", "end"]
    table = rows(heads, lines, numbers=(2, 4, 5, 6)) if lines else '<p class="nothing">nothing matches</p>'
    content = f"{head}{notes}<section>{_form(shelf, query)}{table}{_paging(query, page, len(found))}</section>"
    return shell(f"{shelf.name}: trajectories", "../../", shelf.name, trail(shelf), content)


def where_of(query: Query) -> Where:
    """What can't be understood is not a limit."""
    low, high = _whole(query.get("from", "")), _whole(query.get("to", ""))
    has_steps = low is not None or high is not None
    least, most = _number(query.get("least", "")), _number(query.get("most", ""))
    has_reward = least is not None or most is not None
    return Where(
        task=query.get("task") or None,
        steps=(low or 0, 1 << 62 if high is None else high) if has_steps else None,
        success={"failed": False, "success": True}.get(query.get("outcome", "")),
        purpose=query.get("purpose") if query.get("purpose") in ("train", "validate") else None,
        reward=(-1e300 if least is None else least, 1e300 if most is None else most) if has_reward else None,
    )


def _whole(given: str) -> int | None:
    return int(given) if given.isdecimal() and len(given) < 18 else None


def _number(given: str) -> float | None:
    try:
        return float(given)
    except ValueError:
        return None


def _sorted(found: list[Summary], sort: str) -> list[Summary]:
    if sort in ("best", "worst"):
        return sorted(found, key=lambda play: play.reward, reverse=sort == "best")
    return found[::-1]


def _row(play: Summary) -> list[str]:
    at = f"v{play.validation}" if play.validation is not None else "-" if play.step is None else str(play.step)
    return [
        link(f"play/{part(play.trajectory)}", play.trajectory),
        escape(play.task),
        f"{play.reward:.3g}",
        '<span class="badge good">success</span>' if play.success else '<span class="badge bad">failed</span>',
        at,
        str(play.turns),
        str(play.tokens),
        "limit" if play.stop == "limit" else "",
    ]


def _form(shelf: Shelf, query: Query) -> str:
    tasks = {"": "any", **{task: task for task in shelf.index.tasks()}}
    fields = [
        _select("task", "Task", tasks, query),
        _select("outcome", "Outcome", _OUTCOMES, query),
        _select("purpose", "In", _PURPOSES, query),
        _select("sort", "Order", _SORTS, query),
        *(_input(name, label, query) for name, label in (("from", "Steps from"), ("to", "to"))),
        *(_input(name, label, query) for name, label in (("least", "Reward from"), ("most", "to"))),
    ]
    return f'<form class="filters">{"".join(fields)}<button>Show</button></form>'


def _select(name: str, label: str, options: dict[str, str], query: Query) -> str:
    chosen = query.get(name, "")
    own = "".join(
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>{escape(shown)}</option>'
        for value, shown in options.items()
    )
    return f'<label>{label} <select name="{name}">{own}</select></label>'


def _input(name: str, label: str, query: Query) -> str:
    value = escape(query.get(name, ""))
    return f'<label>{label} <input name="{name}" value="{value}" inputmode="decimal" size="5"></label>'


def _paging(query: Query, page: int, count: int) -> str:
    others = {key: value for key, value in query.items() if key != "page"}
    links = []
    if page:
        links.append(f'<a rel="prev" href="{escape(to("plays", **others, page=page - 1))}">Newer</a>')
    if (page + 1) * PER_PAGE < count:
        links.append(f'<a rel="next" href="{escape(to("plays", **others, page=page + 1))}">More</a>')
    return f'<p class="chips">{" ".join(links)}</p>' if links else ""


# --- one trajectory ------------------------------------------------------------------------------


def one_play(shelf: Shelf, trajectory: str) -> str | None:
    """None: it is not recorded, or not any more."""
    shelf.index.refresh()
    play = shelf.index.load(trajectory)
    if play is None:
        return None
    with_advantages(shelf.run, [play])
    others = shelf.index.siblings(play)
    beside = _beside(shelf, play, others)
    content = _head(play) + _members(play, others) + beside + _tokens(shelf, play)
    return shell(play.trajectory, "../../../", "", trail(shelf, "../"), content)


def _head(play: Play) -> str:
    at = f"validation of version {play.validation}" if play.validation is not None else "not trained"
    at = f"trained in step {play.step}" if play.step is not None else at
    badge = '<span class="badge good">success</span>' if play.success else '<span class="badge bad">failed</span>'
    facts = [
        f"{play.task}, seed {play.seed}",
        at,
        f"{play.turns} turns, {play.sampled_tokens} of {play.tokens} tokens sampled",
        f"versions {play.first_version} to {play.last_version}",
        f"ended by {'a limit' if play.stop == 'limit' else 'the environment'}",
        f"policy {play.policy_s:.2f} s, environment {play.reset_s + play.env_s:.2f} s, reward {play.reward_s:.2f} s",
    ]
    outcome = ", ".join(f"{key} {value}" for key, value in play.outcome.items())
    return (
        f"<header><h1>{escape(play.trajectory)}</h1>{badge}<b>reward {play.reward:.3g}</b></header>"
        f'<p class="sub">{escape(" · ".join(facts))}</p>' + (f'<p class="sub">{text(outcome)}</p>' if outcome else "")
    )


def _members(play: Play, others: list[Summary]) -> str:
    if len(others) < 2:
        return ""
    links = [
        f"<b>{escape(each.trajectory)}: {each.reward:.3g}</b>" if each.trajectory == play.trajectory
        else link(part(each.trajectory), f"{each.trajectory}: {each.reward:.3g}")
        for each in others
    ]  # fmt: skip
    return f'<p class="chips">Group: {" ".join(links)}</p>'


def _beside(shelf: Shelf, play: Play, others: list[Summary]) -> str:
    names = [play.trajectory, *(each.trajectory for each in others if each.trajectory != play.trajectory)]
    shown = [play, *filter(None, map(shelf.index.load, names[1:SIBLINGS]))]
    parts = []
    for each in shown:
        says = "".join(_say(at, message, each.turn_rewards) for at, message in enumerate(each.messages))
        title = f"{each.trajectory}: reward {each.reward:.3g}{'' if each.success else ', failed'}"
        parts.append(section(title, "", says))
    return f'<div class="beside">{"".join(parts)}</div>'


def _say(at: int, message: dict[str, str], turn_rewards: list[float]) -> str:
    """Turns are pairs of messages; what a turn earned stands at its answer."""
    role, turn = escape(message.get("role", "")), at // 2
    earned = f", earned {turn_rewards[turn]:.3g}" if at % 2 and turn < len(turn_rewards) else ""
    return f'<div class="say {role}"><i>{role}{earned}</i>{text(message.get("content", ""))}</div>'


def _tokens(shelf: Shelf, play: Play) -> str:
    if not play.samples:
        what = "observe.transcript_tokens says of which share tokens are kept; not of this one"
        return section("Tokens", what, "")
    tokenizer = _tokenizer(shelf.run.model)
    ways = [("logprob", "log-prob"), ("version", "version")]
    if any(tokens.advantages is not None for tokens in play.samples):
        ways.append(("advantage", "advantage"))
    choice = "".join(
        f'<label><input type="radio" name="by" id="by-{way}"{" checked" if not i else ""}> {name}</label>'
        for i, (way, name) in enumerate(ways)
    )
    body = "".join(f'<p class="sample">{_spans(tokens, play, tokenizer)}</p>' for tokens in play.samples)
    sub = "sampled tokens are coloured; the darker, the less probable, the newer, or the larger the advantage"
    return section("Tokens", sub, f'<div class="tokens"><p class="chips">Colour by {choice}</p>{body}</div>')


def _spans(tokens: Tokens, play: Play, tokenizer: Tokenizer | None) -> str:
    spans = []
    ages = max(1, play.last_version - play.first_version)
    largest = max((abs(a) for a in tokens.advantages or ()), default=0.0) or 1.0
    for at, token in enumerate(tokens.ids[:MOST_TOKENS]):
        shown = escape(_text_of(token, tokenizer))
        version, logprob = tokens.versions[at], tokens.logprobs[at]
        if version < 0:
            spans.append(f'<span class="seen">{shown}</span>')
            continue
        advantage = tokens.advantages[at] if tokens.advantages else 0.0
        shares = (min(1.0, logprob / _PROBABLE), (version - play.first_version) / ages, advantage / largest)
        told = f"{token}: log-prob {logprob:.3f}, version {version}"
        told += f", advantage {advantage:+.3f}" if tokens.advantages else ""
        style = f"--l:{shares[0]:.2f};--v:{shares[1]:.2f};--p:{max(0, shares[2]):.2f};--n:{max(0, -shares[2]):.2f}"
        spans.append(f'<span class="tok" style="{style}" data-t="{escape(told)}">{shown}</span>')
    if len(tokens.ids) > MOST_TOKENS:
        spans.append(f"… {len(tokens.ids) - MOST_TOKENS} tokens are not shown")
    return "".join(spans)


@lru_cache(maxsize=8)
def _tokenizer(model: Path) -> Tokenizer | None:
    try:
        return load_tokenizer(model / "tokenizer.json")
    except RollartError:  # the model was moved: ids say something too
        return None


def _text_of(token: int, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return f"{token} "
    return str(tokenizer.decode([token], skip_special_tokens=False)) or f"<{token}>"
