"""One word, one thing: class names are the field's words, and no two public classes share one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from mama_spark.cli.commands.docs import files
from mama_spark.options.document import described

ROOT = Path(__file__).resolve().parent.parent
#: These say nothing alone, but are parts of names that do: dead letters, lease keepers, frame readers.
ALONE = {"Letter", "Keeper", "Reader", "Store", "Loop", "Link", "Pool", "Place", "Kind", "Slot", "Stored"}


def classes(*folders: str) -> Iterator[tuple[str, str]]:
    """Files, and the classes at their top."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in re.findall(r"(?m)^class (\w+)", path.read_text(encoding="utf-8")):
                yield path.relative_to(ROOT).as_posix(), name


def test_class_names_say_what_it_is() -> None:
    assert [found for found in classes("connector", "tests/support") if found[1] in ALONE] == []


def test_no_two_public_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = {}
    for path, name in classes("connector", "tests/support"):
        if not name.startswith("_"):
            homes.setdefault(name, []).append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def identifiers(text: str) -> set[str]:
    """What a module defines: classes, functions, parameters, attributes and variables."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def test_docstrings_begin_with_what_the_thing_is() -> None:
    field, fields_first = re.compile(r":(param|ivar|returns?|raises)\b"), []
    for path in sorted((ROOT / "connector").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and field.match(
                ast.get_docstring(node) or ""
            ):
                fields_first.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert fields_first == []


def test_packages_say_what_they_are_and_list_their_names() -> None:
    product = ROOT / "connector" / "mama_spark"
    wrong = []
    for path in sorted(product.rglob("__init__.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        sentence = (ast.get_docstring(tree) or "").split("\n\n")[0]
        assigned = {
            ast.unparse(target) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
        }
        bare = len(tree.body) == 1
        if not (bare or "__all__" in assigned) or not sentence.endswith((".", ":")):
            wrong.append(path.parent.relative_to(product).as_posix())
    assert wrong == []


#: Durations that Tango and Malamute count in milliseconds, under the names that they have there.
FOREIGN_DURATIONS = {"period", "ttls"}
#: Where a text says what a number counts, and not how long something takes.
_UNIT_OF_TEXT = re.compile(r"(?:^|[:;,] (?:in )?|\bmaximum )\s*(?:milli|micro|nano)seconds\b", re.I)
#: Parts of a time.
_PARTS = {"nanos", "_seconds", "_set_seconds"}
_UNIT_OF_NAME = re.compile(r"(?i)[a-z]_(s|secs?|seconds|minutes|hours|days)\b")
_FIELD = re.compile(r":(?:ivar|param|cvar) (\w+):((?:.|\n(?!\s*(?::|\"\"\"|$)))*)")
_COMMENTED = re.compile(r"(?:^ *#: (.*)\n)?^ *(?:self\.)?(\w+)(?:: \w+)? = [^#\n]*(?:#:? (.*))?$", re.M)


def durations_of_other_units(text: str) -> set[str]:
    """Names that a text of the source says to be milli-, micro- or nanoseconds, without times since an epoch."""
    said = [(found[1], found[2]) for found in _FIELD.finditer(text)]
    said += [(found[2], one) for found in _COMMENTED.finditer(text) for one in (found[1], found[3]) if one]
    of_unit = {name for name, what in said if _UNIT_OF_TEXT.search(what.strip()) and not re.search(r"epoch|1970", what)}
    return {name for name in of_unit - _PARTS if not re.search(r"(?i)_(ms|us|ns)$", name)}


def test_durations_of_other_units_are_found() -> None:
    text = '''
    #: Milliseconds between looks.
    INTERVAL = 5
    wait = 50  # milliseconds
    self.at = 0  # microseconds since the epoch
    """
    :ivar period: nanoseconds
    :param age_us: microseconds since it was stored
    :param timeout: seconds; a row takes some milliseconds
    """'''
    assert durations_of_other_units(text) == {"INTERVAL", "wait", "period"}


def test_a_duration_is_in_seconds_or_its_name_has_its_unit() -> None:
    """A number alone is seconds wherever it goes; what counts otherwise says so where it is used."""
    for path in sorted(p for folder in ("connector", "jobs") for p in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert durations_of_other_units(text) <= FOREIGN_DURATIONS, path
        assert not _UNIT_OF_NAME.search(path.stem), path
        if _UNIT_OF_NAME.search(text):
            assert {name for name in identifiers(text) if _UNIT_OF_NAME.search(name)} <= _PARTS, path


def test_every_duration_in_a_configuration_file_has_its_unit() -> None:
    names = {one.get("key", one.get("option", "")) for one in described(files()) if one["type"] == "duration"}
    assert len(names) > 20
    for path in (ROOT / "conf").glob("*.toml"):
        given = re.findall(r"(?m)^(?:# )?(\w+) *= *\"?([\d.]+)\"? *(?:#.*)?$", path.read_text(encoding="utf-8"))
        assert [(name, value) for name, value in given if name in names and float(value)] == [], path
