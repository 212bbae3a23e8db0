"""One word, one thing: class names are the field's words, and no two public classes share one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Parts of class names that an engineer of Spark, NATS, ZeroMQ or Tango would have to look up.
PRIVATE_WORDS = {
    "Asker", "Board", "Cargo", "Cutter", "Desk", "Died", "Ear", "Feed", "Gather", "Guilty", "House", "Intake",
    "Lasting", "Lives", "Mail", "Outlet", "Owed", "Reach", "Room", "Said", "Serving", "Shelf", "Stage", "Stranger",
    "Taken", "Tally", "Tap", "Teller", "Told",
}  # fmt: skip
#: These say nothing alone, but are parts of names that do: dead letters, lease keepers, frame readers.
ALONE = {"Letter", "Keeper", "Reader", "Store", "Loop", "Link", "Pool", "Place", "Kind", "Slot", "Stored"}
#: Words of the old layout in the test of the architecture and in the page on the design.
OLD_LAYOUT = {"room", "rooms", "arrows", "law", "laws"}
#: Names that two public classes share, until one of them is found a better word.
SHARED: set[str] = set()


def classes(*folders: str) -> Iterator[tuple[str, str]]:
    """Files, and the classes at their top."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    yield path.relative_to(ROOT).as_posix(), node.name


def parts(name: str) -> set[str]:
    return set(re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z][a-z0-9]*", name))


def test_class_names_are_usual_words() -> None:
    found = classes("connector", "tests", "bench", "jobs", "scripts")
    assert [(path, name) for path, name in found if parts(name) & PRIVATE_WORDS or name in ALONE] == []


def test_no_two_public_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = {}
    for path, name in classes("connector", "tests/support"):
        if not name.startswith("_"):
            homes.setdefault(name, []).append(path)
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in SHARED} == {}


def test_the_design_speaks_of_packages_and_rules() -> None:
    for page in ("docs/explanation/design.md", "tests/test_architecture.py"):
        words = set(re.findall(r"[a-z]+", (ROOT / page).read_text(encoding="utf-8").lower()))
        assert words & OLD_LAYOUT == set(), page
