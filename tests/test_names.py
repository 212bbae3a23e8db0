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
#: Parts of the names of functions, parameters, attributes, variables and modules that say nothing to such an engineer.
PRIVATE_PARTS = {
    "asker", "blind", "board", "buried", "bury", "cargo", "cutter", "deaf", "desk", "ear", "grave", "guilty", "house",
    "hungry", "intake", "lasting", "law", "laws", "lives", "mail", "mourn", "outlast", "outlet", "outlive", "owed",
    "owes", "patience", "patient", "reach", "room", "rooms", "said", "serving", "shelf", "stage", "standing",
    "stranger", "talk", "tally", "teller", "tidy", "told", "unsaid", "untaken", "wish",
}  # fmt: skip
#: ``STANDING`` is a query of the log protocol, under this name in its documentation.
PUBLIC_KEYWORDS = {"STANDING"}
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


def identifiers(path: Path) -> set[str]:
    """What a module defines: itself, classes, functions, parameters, attributes and variables."""
    found = {path.stem if path.stem != "__init__" else path.parent.name}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def words_of(identifier: str) -> set[str]:
    """``_death_error`` and ``deathError`` -> death, error."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", identifier)}


def test_identifiers_are_usual_words() -> None:
    product = ROOT / "connector"
    found = {
        name: path.relative_to(product).as_posix()
        for path in sorted(product.rglob("*.py"))
        if path.name != "moved_names.py"
        for name in identifiers(path)
        if words_of(name) & PRIVATE_PARTS
    }
    assert {name: path for name, path in found.items() if name not in PUBLIC_KEYWORDS} == {}


def test_packages_say_what_they_are_and_list_their_names() -> None:
    product = ROOT / "connector" / "mama_spark"
    wrong = []
    for path in sorted(product.rglob("__init__.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        sentence = (ast.get_docstring(tree) or "").split("\n\n")[0]
        assigned = {
            ast.unparse(target) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
        }
        if "__all__" not in assigned or not sentence.endswith((".", ":")):
            wrong.append(path.parent.relative_to(product).as_posix())
    assert wrong == []
