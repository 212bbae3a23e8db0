"""Names, links and tables of the pages are true."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.cli.main import parser
from mama_spark.flightlog.schema import DEAD_LETTERS, table_schema
from mama_spark.malamute.broker.engines import StreamEngine
from mama_spark.nats.key_rows import COLUMNS
from mama_spark.options import DiscoveryOptions, SinkOptions, SubscribeOptions, option_names
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.spark.sink.encoding.columns import KNOWN
from mama_spark.spark.subscribe.schema import schema_of
from mama_spark.spark.write_counts import WriteCounts
from pyspark.sql.types import StructType

from scripts.command_reference import PAGE as COMMANDS
from scripts.command_reference import markdown

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Read on their own, beside the site, which checks its links itself.
OUTSIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / name for name in OUTSIDE)])
#: Names of options, and their other names.
OPTIONS = {name for options in (SinkOptions, SubscribeOptions, DiscoveryOptions) for name in option_names(options)}
SPARK_OPTIONS = {"checkpointLocation", "path", "rowsPerSecond"}
#: Entry points, which look like names of modules.
GROUPS = {"mama_spark.middlewares", "mama_spark.stream_engines"}


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
    missing = []
    for page, name in sorted({*dotted_names()}):
        try:
            if name not in GROUPS:
                find(name)
        except (ImportError, AttributeError) as error:
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


def fenced(text: str, language: str) -> list[str]:
    """Code blocks of one language, also those inside a list."""
    blocks = re.findall(rf"(?ms)^( *)```{language}\n(.*?)^\1```$", text)
    return [textwrap.dedent(code) for _, code in blocks]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_are_python_and_name_known_options(page: Path) -> None:
    for code in fenced(page.read_text(encoding="utf-8"), "python"):
        compile(code, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        assert {*re.findall(r'\.option\("([\w.]+)"', code)} <= OPTIONS | SPARK_OPTIONS


def test_the_page_of_a_slow_write_names_all_that_a_write_waits_for() -> None:
    page = (DOCS / "how-to" / "find-why-a-write-is-slow.md").read_text(encoding="utf-8")
    named = [cell.split(" for N s")[0] for cell in re.findall(r"(?m)^\| ([^|]+) \|.+\|$", page)[1:]]
    code = inspect.getsource(BatchPublisher) + inspect.getsource(WriteCounts)
    assert [cell for cell in named if cell != "nothing" and cell not in code] == []
    waits = re.search(r"def waits_for.+?(?=\n    (?:def|@|#))", code, re.DOTALL)
    assert waits is not None
    told = re.findall(r'"([a-z][^"{]{8,})', waits[0].split('"""')[2])
    told += re.findall(r'waits for ([a-zA-Z][^"{]+)', inspect.getsource(WriteCounts.note))
    assert {text.removesuffix(" for ") for text in told} <= {*named}


@pytest.mark.thorough
def test_the_examples_of_a_beginner_have_no_wrong_type(tmp_path: Path) -> None:
    """As the type checker of a user sees them."""
    for page in (ROOT / "README.md", DOCS / "tutorial" / "first-delivery-report.md"):
        for number, code in enumerate(fenced(page.read_text(encoding="utf-8"), "python")):
            (tmp_path / f"{page.stem.replace('-', '_')}_{number}.py").write_text(code, encoding="utf-8")
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    from mypy import api

    report, errors, status = api.run([*config, *map(str, sorted(tmp_path.glob("*.py")))])
    assert (errors, status) == ("", 0), report


def test_options_in_the_text_are_known() -> None:
    """``camelCase=value`` in code."""
    named = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"`([a-z]+[A-Z]\w*)=[^`]*`", without_code(page.read_text(encoding="utf-8")))
    }
    assert [(page, name) for page, name in sorted(named) if name not in OPTIONS] == []


def test_commands_in_blocks_are_understood() -> None:
    """Lines that begin with ``mama``, but for the generated page, which shows how arguments are spelled."""
    lines = {
        line
        for page in PAGES
        if page != COMMANDS
        for line in re.findall(r"(?m)^ *(mama [a-z-]+(?: .*)?)$", page.read_text(encoding="utf-8"))
    }
    assert len(lines) > 10
    for line in lines:
        assert callable(parser().parse_args(shlex.split(line, comments=True)[1:]).run), line


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
    assert [name.lower() for name in column_cells(text, "### A bucket")] == [*COLUMNS]
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
    assert COMMANDS.read_text(encoding="utf-8") == markdown(), "run make docs"


def test_every_configuration_file_is_shown() -> None:
    text = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    shown = set(re.findall(r'--8<-- "(.*?)"', text))
    assert shown == {path.relative_to(ROOT).as_posix() for path in (ROOT / "conf").iterdir() if path.is_file()}


def test_the_methods_of_an_engine_that_may_be_overridden_exist() -> None:
    text = (DOCS / "how-to" / "write-a-stream-engine.md").read_text(encoding="utf-8")
    section = text.split("## Optional methods\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z_]+)`", section)) - {"mamasub"}
    assert {"flush", "sync", "position", "credit", "ask"} <= named
    assert named <= {*dir(StreamEngine)}


def test_the_folders_of_the_layout_exist() -> None:
    text = (DOCS / "explanation" / "design.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b(\w+)/", text.split("## Layout")[1].split("```")[1]))
    folders = {path.name for top in ("connector", "tests") for path in (ROOT / top).rglob("*") if path.is_dir()}
    assert named <= folders | {path.name for path in ROOT.iterdir()}
