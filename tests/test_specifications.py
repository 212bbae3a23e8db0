"""The checklists in tests/specifications are complete and name the tests that are marked with each id."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.spec_checklist import FOLDER, PAGES, ROOT, MarkedTests, faults, filled, ids_to_tests
from tests.support.tables import each


@pytest.fixture(scope="module")
def tests() -> dict[str, MarkedTests]:
    """Not made on import: every worker imports this module, one of them runs it."""
    return ids_to_tests(ROOT)


def pages() -> dict[str, str]:
    return {name: (FOLDER / name).read_text(encoding="utf-8") for name in PAGES}


def test_every_id_of_every_specification_has_a_test_or_a_reason(tests: dict[str, MarkedTests]) -> None:
    assert faults(pages(), tests) == []


def test_an_id_that_loses_its_test_is_found(tests: dict[str, MarkedTests]) -> None:
    less = {id_: names for id_, names in tests.items() if id_ != "ML-07"}
    assert "malamute.md: ML-07: no test is marked with it, and the row does not say why (none: ...)" in faults(
        pages(), less
    )


@each("kind", ["later", "originals"])
def test_an_id_that_make_test_has_no_test_of_says_why(tests: dict[str, MarkedTests], kind: str) -> None:
    page, rest = "openmama-wire.md", {id_: marked for id_, marked in tests.items() if id_ != "OW10"}
    only = {**rest, "OW10": MarkedTests(**{kind: ["test_x"]})}
    unmarked = {**pages(), page: filled(pages()[page], only)}
    assert faults(unmarked, only) == [
        f"{page}: OW10: make test has no test of it: write one, or begin the last cell with 'not by make test, WHY: '"
    ]
    marked = {**unmarked, page: unmarked[page].replace("| `test_x` |", "| not by make test, it is dear: `test_x` |")}
    assert faults(marked, only) == []
    assert f"{page}: OW10: make test has a test of it: leave out the reason" in faults(marked, tests)
    assert f"{page}: OW10: no test is marked with it, and the row does not say why (none: ...)" in faults(marked, rest)


def test_the_tier_of_a_test_is_read_from_its_marks_and_those_of_its_class_and_module(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_a.py").write_text("""
@pytest.mark.spec("OW1", "OW2")
def test_a(): ...
@pytest.mark.thorough
@pytest.mark.spec("OW1-OW3")
def test_b(): ...
@pytest.mark.explore
class TestC:
    @pytest.mark.spec("OW3")
    def test_c(self): ...
""")
    (folder / "test_d.py").write_text("""
pytestmark = [pytest.mark.thorough, pytest.mark.spec("OW4")]
def test_d(): ...
""")
    assert ids_to_tests(tmp_path) == {
        "OW1": MarkedTests(["test_a"], ["test_b"]),
        "OW2": MarkedTests(["test_a"], ["test_b"]),
        "OW3": MarkedTests([], ["test_b", "test_c"]),
        "OW4": MarkedTests([], ["test_d"]),
    }


def test_an_id_that_no_page_lists_is_found(tests: dict[str, MarkedTests]) -> None:
    found = faults(pages(), {**tests, "ML-99": MarkedTests(["test_x"])})
    assert found == ["no page lists ML-99, which test_x is marked with"]


@pytest.mark.parametrize("name", PAGES)
def test_a_row_too_few_is_found(name: str, tests: dict[str, MarkedTests]) -> None:
    first = PAGES[name][0]
    less = "\n".join(line for line in pages()[name].split("\n") if not line.startswith(f"| {first}"))
    assert f"{name}: {first} has 0 rows" in faults({**pages(), name: less}, tests)


def test_every_test_that_a_page_names_is_there() -> None:
    sources = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "connector" / "mama_spark").rglob("testing/*.py")]
    files = {path.name for path in sources}
    names = {name for path in sources for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"\b(test_\w+\.py)", text)) <= files, page.name
        assert set(re.findall(r"\b(test_\w+)\b(?!\.py)", text)) <= names, page.name
