"""Results of checks. Owns the levels and the output format; does not know what is checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "note", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    level: Level
    check: str  # what was checked: munge, partition h800
    what: str
    fix: str = ""  # what to do about it

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def good(check: str, what: str) -> Finding:
    return Finding("ok", check, what)


def note(check: str, what: str, fix: str = "") -> Finding:
    return Finding("note", check, what, fix)


def warn(check: str, what: str, fix: str) -> Finding:
    return Finding("warn", check, what, fix)


def fail(check: str, what: str, fix: str) -> Finding:
    return Finding("fail", check, what, fix)


def has_failed(findings: Iterable[Finding]) -> bool:
    return any(finding.level == "fail" for finding in findings)


def lines(findings: Iterable[Finding]) -> Iterator[str]:
    """One line per finding, and below it the fix if there is one."""
    for finding in findings:
        yield f"{finding.level:<5} {finding.check}: {finding.what}"
        if finding.fix:
            yield f"      -> {finding.fix}"


def tally(findings: Iterable[Finding]) -> str:
    """3 ok, 1 warn"""
    levels = [finding.level for finding in findings]
    counts = ((level, levels.count(level)) for level in ("ok", "note", "warn", "fail"))
    return ", ".join(f"{count} {level}" for level, count in counts if count)
