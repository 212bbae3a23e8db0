"""A page is as short as its kind asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: Most words of a page, as ``wc -w`` counts them, by its folder; a reference has as many as its subject needs.
LIMITS = {"how-to": 480, "explanation": 1_200, "tutorial": 600}
#: Pages that are longer, and their present length: it may only shrink.
LONGER: dict[str, int] = {}


@pytest.mark.parametrize("kind", LIMITS)
def test_a_page_is_no_longer_than_its_kind_allows(kind: str) -> None:
    words = {
        page.relative_to(DOCS).as_posix(): len(page.read_text(encoding="utf-8").split())
        for page in sorted((DOCS / kind).glob("*.md"))
    }
    longer = {page: count for page, count in words.items() if count > LONGER.get(page, LIMITS[kind])}
    assert words, kind
    assert longer == {}, "say it shorter, or make two pages of it"


def test_no_page_has_an_exception_that_it_does_not_need() -> None:
    for page, length in LONGER.items():
        count = len((DOCS / page).read_text(encoding="utf-8").split())
        assert LIMITS[page.partition("/")[0]] < count == length, f"{page} has {count} words: write this number down"


#: Most words of all pages of the reference.
REFERENCE = 14_000


def test_the_reference_as_a_whole_is_no_longer() -> None:
    pages = (DOCS / "reference").glob("*.md")
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= REFERENCE
