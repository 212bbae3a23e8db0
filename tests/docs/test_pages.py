"""Names, links and tables of the pages are true."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.flightlog.schema import DEAD_LETTERS, table_schema
from mama_spark.options import SubscribeOptions
from mama_spark.spark.sink.columns import KNOWN
from mama_spark.spark.subscribe.schema import schema_of
from pyspark.sql.types import StructType

from scripts.command_reference import PAGE, markdown

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Read on their own, beside the site, which checks its links itself.
OUTSIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / name for name in OUTSIDE)])
#: Entry points, which look like names of modules.
GROUPS = {"mama_spark.stream_engines"}


def without_code(text: str) -> str:
    return re.sub(r"(?ms)^```.*?^```", "", text)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def anchors(page: Path) -> set[str]:
    return {slug(text) for text in re.findall(r"(?m)^#+ (.*)$", without_code(page.read_text(encoding="utf-8")))}


@pytest.mark.parametrize("name", OUTSIDE)
def test_links_of_pages_outside_of_the_site_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code((ROOT / name).read_text(encoding="utf-8"))):
        if not link.startswith("http"):
            path, _, anchor = link.partition("#")
            assert (ROOT / path).exists(), f"{name}: {link}"
            assert not anchor or anchor in anchors(ROOT / path), f"{name}: {link}"


def dotted_names() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for name in re.findall(r"\bmama_spark(?:\.\w+)+", page.read_text(encoding="utf-8")):
            yield page.relative_to(ROOT).as_posix(), name


def find(name: str) -> object:
    """What a dotted name of a module, class, function or attribute stands for."""
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:at]))
        except ModuleNotFoundError as error:
            if error.name is None or not ".".join(parts[:at]).startswith(error.name):
                raise
            continue
        for part in parts[at:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_every_dotted_name_exists() -> None:
    """Without a warning, which the old name of something that has moved gives."""
    missing = []
    for page, name in sorted({*dotted_names()}):
        try:
            if name not in GROUPS:
                find(name)
        except (ImportError, AttributeError, DeprecationWarning) as error:
            missing.append(f"{page}: {name} ({error})")
    assert missing == []


def test_every_file_that_a_page_names_exists() -> None:
    """Paths of the repository in code; ``<name>`` and ``*`` stand for any."""
    missing = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"`((?:tests|conf|connector|jobs|bench|scripts|docs)/[\w./<>*-]+)`", text):
            pattern = re.sub(r"<\w+>", "*", path.rstrip("/"))
            if not any(ROOT.glob(pattern)):
                missing.append(f"{page.name}: {path}")
    assert missing == []


def column_cells(text: str, heading: str) -> list[str]:
    """The names in the first column of the first table below a heading."""
    table = re.search(r"(?m)(?:^\|.*\n)+", text[text.index(f"\n{heading}\n") :])
    assert table is not None
    cells = [line.split("|")[1] for line in table[0].splitlines()[2:]]
    return [name.strip(" `") for cell in cells for name in cell.split(",") if not cell.strip().startswith("*")]


def test_the_columns_of_the_flight_log_are_listed() -> None:
    text = (DOCS / "reference" / "flight-log.md").read_text(encoding="utf-8")
    assert column_cells(text, "## Columns") == table_schema().names
    assert column_cells(text, "## Dead-letter table") == DEAD_LETTERS.names


def test_the_columns_of_the_formats_are_listed() -> None:
    text = (DOCS / "reference" / "columns.md").read_text(encoding="utf-8")
    assert {*column_cells(text, "## Columns that `mamapub` accepts")} == {*KNOWN}
    assert (
        column_cells(text, "## Columns that `mamasub` emits")
        == schema_of(SubscribeOptions.parse({"topics": "t"})).names
    )


def test_the_fields_of_tango_are_listed() -> None:
    text = (DOCS / "reference" / "tango.md").read_text(encoding="utf-8")
    column = schema_of(SubscribeOptions.parse({"topics": "t", "tango": "true"}))["tango"].dataType
    assert isinstance(column, StructType)
    assert column_cells(text, "## Column `tango`") == column.names


def test_the_reference_of_commands_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run make docs"


def test_every_configuration_file_is_shown() -> None:
    text = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    shown = set(re.findall(r'--8<-- "(.*?)"', text))
    assert shown == {path.relative_to(ROOT).as_posix() for path in (ROOT / "conf").iterdir()}
