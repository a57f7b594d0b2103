"""Generated pages are those that the code would write now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rollart_hpc.config import pages
from rollart_hpc.config.reference import all_keys, sections

DOCS = Path(__file__).resolve().parents[2] / "docs"
STALE = "not current: run `make docs` and commit the result"


def test_the_page_of_keys_is_current() -> None:
    assert (DOCS / "config.md").read_text() == pages.config_page(), STALE


def test_the_tables_of_modes_states_and_reasons_are_current() -> None:
    page = (DOCS / "runs.md").read_text()
    assert page == pages.with_tables(page), STALE


def test_the_tables_of_algorithms_are_current() -> None:
    page = (DOCS / "algorithms.md").read_text()
    assert page == pages.with_registries(page), STALE


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(AssertionError, match="lacks"):
        pages.with_tables("# Runs\n")


def test_the_page_has_every_key_and_its_links_lead_somewhere() -> None:
    page = pages.config_page()
    rows = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert rows == [key.path for key in all_keys()]
    headings = re.findall(r"^### (.+)$", page, re.MULTILINE)
    assert headings == [section.path for section in sections() if section.path]


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_links_into_the_page_lead_to_a_heading(page: Path) -> None:
    headings = re.findall(r"^#+ (.+)$", pages.config_page(), re.MULTILINE)
    anchors = {heading.lower().replace(".", "").replace(" ", "-") for heading in headings}
    wanted = re.findall(r"\]\(config\.md#([^)]+)\)", page.read_text())
    wanted += re.findall(r"\]\(#([^)]+)\)", page.read_text()) if page.name == "config.md" else []
    assert set(wanted) <= anchors
