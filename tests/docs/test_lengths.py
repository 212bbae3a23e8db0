"""A page is as short as its kind asks for, and all of them together can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Most words of a page, as ``wc -w`` counts them, by its folder; a reference has as many as its subject needs.
LIMITS = {"": 600, "how-to": 450, "explanation": 670, "tutorial": 560}
LONGER = {"explanation/design.md": 1_050, "troubleshooting.md": 1_900}
TOGETHER = 38_000  #: most words of all pages and the README


def words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("kind", LIMITS)
def test_a_page_is_no_longer_than_its_kind_allows(kind: str) -> None:
    counts = {page.relative_to(DOCS).as_posix(): words(page) for page in sorted((DOCS / kind).glob("*.md"))}
    longer = {page: count for page, count in counts.items() if count > LONGER.get(page, LIMITS[kind])}
    assert counts, kind
    assert longer == {}, "say it shorter, or make two pages of it"


def test_each_page_says_for_whom_it_is() -> None:
    assert [page for page in DOCS.rglob("*.md") if not re.match("# .+\n\nFor ", page.read_text(encoding="utf-8"))] == []


def test_all_pages_together_can_be_read() -> None:
    assert sum(map(words, [ROOT / "README.md", *DOCS.rglob("*.md")])) <= TOGETHER, "say something shorter, or once"


def test_no_page_has_an_exception_that_it_does_not_need() -> None:
    for page, length in LONGER.items():
        assert LIMITS[Path(page).parent.name] < words(DOCS / page) <= length, page
