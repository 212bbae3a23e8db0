"""The drawn pictures are what their commands draw, stand on a page, and name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import drawn_pictures

ROOT = Path(__file__).resolve().parents[2]
TEXTS = {name: drawn_pictures.svg(name) for name in drawn_pictures.PICTURES}


@pytest.mark.parametrize("name", TEXTS)
def test_a_picture_is_what_its_command_draws(name: str) -> None:
    assert (drawn_pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == TEXTS[name], "run make docs"


@pytest.mark.parametrize("name", [*TEXTS, "rooms"])  # which `make check` compares
def test_a_picture_stands_on_a_page(name: str) -> None:
    assert any(f"{name}.svg)" in page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))


def test_files_that_a_picture_names_exist() -> None:
    package = ROOT / "connector" / "mama_spark"
    named = {name for picture in TEXTS.values() for name in re.findall(r"[\w/]+\.py", picture)}
    assert "spark/sink/data_source.py" in named
    assert [name for name in sorted(named) if not any(package.rglob(name))] == []
