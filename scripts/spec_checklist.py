"""Write the checklists of the specifications (tests/specifications) from the marks of the tests.

    python scripts/spec_checklist.py --write     fill the last column of each checklist
    python scripts/spec_checklist.py --check     say what is out of date or missing, and fail

A row of a checklist begins with an id, or several (``P1-P18``, ``S1, S2``), and ends with the tests that are marked
with it, ``@pytest.mark.spec("ML-07")`` or ``spec("SD-35-SD-48")``. A row without a test says ``none: `` and why. Tests
that ``make test`` does not run stand behind the others; a row that has no others begins, by hand, with ``not by make
test, WHY: ``. Marks are read from the source: nothing is imported.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "specifications"
#: Page -> the ids that its checklists must have, in order.
PAGES: dict[str, list[str]] = {
    "managed-publisher.md": [f"MP-{n:02}" for n in range(1, 44)],
    "publisher-events.md": [f"PE-{n:02}" for n in range(1, 57)],
    "source-discovery.md": [f"SD-{n:02}" for n in range(1, 52)],
    "malamute.md": [
        *(f"ML-{n:02}" for n in range(1, 28)),
        *(f"{kind}{n}" for kind, last in zip("PMEBSCTFI", (18, 2, 1, 5, 6, 14, 1, 1, 2), strict=True)
          for n in range(1, last + 1)),
    ],
    "tango.md": [f"TG-{n:02}" for n in range(1, 47)],
    "openmama-wire.md": [f"OW{n}" for n in range(1, 33)],
}  # fmt: skip
SHOWN = 2  #: tests named in a row; of more, the number is told
NO_TEST, NOT_USUAL = "none: ", re.compile(r"not by make test, [^:`]+: ")
ROW = re.compile(
    r"^\| (?P<ids>(?:[A-Z]{2}-\d\d|OW\d+|[PMEBSCTFI]\d+)[-, A-Z0-9]*?) \|(?P<text>.*)\| (?P<last>[^|]*) \|$"
)


@dataclass
class MarkedTests:
    """Names of the tests of one id, or of one row, each once.

    :ivar usual: that ``make test`` runs
    :ivar later: of the other tiers
    :ivar originals: that need the original programs of a middleware
    """

    usual: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)
    originals: list[str] = field(default_factory=list)

    @property
    def unusual(self) -> list[str]:
        return self.later + self.originals

    def merged(self, other: MarkedTests) -> MarkedTests:
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return MarkedTests(*(list(dict.fromkeys(one + more)) for one, more in both))


def expand(ids: str) -> list[str]:
    """``P1-P3, S2`` -> ``P1 P2 P3 S2``"""
    found = []
    for prefix, first, last in re.findall(r"([A-Z]{2}-|OW|[A-Z])(\d+)(?:-\1(\d+))?", ids):
        found += [f"{prefix}{n:0{len(first)}}" for n in range(int(first), int(last or first) + 1)]
    return found


def _marked(node: ast.Module | ast.ClassDef, marks: list[ast.expr]) -> Iterator[tuple[str, list[ast.expr]]]:
    """The tests in a module or class with their marks; those of ``pytestmark`` and of the class are of each."""
    for inner in node.body:
        if isinstance(inner, ast.Assign) and ast.unparse(inner.targets[0]) == "pytestmark":
            marks = marks + (inner.value.elts if isinstance(inner.value, ast.List) else [inner.value])
    for inner in node.body:
        if isinstance(inner, ast.ClassDef):
            yield from _marked(inner, inner.decorator_list + marks)
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name.startswith("test_"):
            yield inner.name, inner.decorator_list + marks


def _ids(marks: list[ast.expr]) -> list[str]:
    calls = [mark for mark in marks if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.spec"]
    return [id_ for call in calls for argument in call.args for id_ in expand(ast.literal_eval(argument))]


def ids_to_tests(root: Path) -> dict[str, MarkedTests]:
    """The tests that are marked with each id, in order of files and lines; suites that ship are read too."""
    found: dict[str, MarkedTests] = {}
    for folder in (root / "tests", *sorted((root / "connector" / "mama_spark").rglob("testing"))):
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "mark.spec(" not in text:
                continue
            original = root / "tests" / "originals" in path.parents
            for name, marks in _marked(ast.parse(text), []):
                thorough = {"pytest.mark.thorough", "pytest.mark.explore"} & set(map(ast.unparse, marks))
                for id_ in dict.fromkeys(_ids(marks)):
                    tests = found.setdefault(id_, MarkedTests())
                    (tests.originals if original else tests.later if thorough else tests.usual).append(name)
    return found


def _names(tests: list[str]) -> str:
    shown = ", ".join(f"`{test}`" for test in tests[:SHOWN])
    return shown + (f" (+{len(tests) - SHOWN})" if len(tests) > SHOWN else "")


def _cell(tests: MarkedTests, last: str) -> str:
    """:param last: the cell as it is"""
    if not tests.usual:
        why = NOT_USUAL.match(last)
        return (why[0] if why else "") + _names(tests.unusual)
    originals = f"; original programs: {_names(tests.originals)}" if tests.originals else ""
    return _names(tests.usual + tests.later) + originals


def filled(page: str, tests: dict[str, MarkedTests]) -> str:
    """The page with the last column of its checklists written anew."""
    lines = []
    for line in page.split("\n"):
        row = ROW.match(line)
        if row:
            found = MarkedTests()
            for id_ in expand(row["ids"]):
                found = found.merged(tests.get(id_, MarkedTests()))
            if found.usual or found.unusual:
                line = f"| {row['ids']} |{row['text']}| {_cell(found, row['last'])} |"
        lines.append(line)
    return "\n".join(lines)


def _fault(id_: str, last: str, tests: MarkedTests) -> str | None:
    """What is wrong with one id of a row.

    :param last: the last cell of the row
    """
    if tests.usual:
        return "make test has a test of it: leave out the reason" if NOT_USUAL.match(last) else None
    if last.startswith(NO_TEST):
        return None
    if not tests.unusual:
        return "no test is marked with it, and the row does not say why (none: ...)"
    if not NOT_USUAL.match(last):
        return "make test has no test of it: write one, or begin the last cell with 'not by make test, WHY: '"
    return None


def faults(pages: dict[str, str], tests: dict[str, MarkedTests]) -> list[str]:
    """What is wrong with the checklists of these pages (name -> text), a line each."""
    found = [f"no page lists {id_}, which {(tests[id_].usual + tests[id_].unusual)[0]} is marked with"
             for id_ in sorted(tests.keys() - {id_ for ids in PAGES.values() for id_ in ids})]  # fmt: skip
    for name, wanted in PAGES.items():
        rows = [row for line in pages[name].split("\n") if (row := ROW.match(line))]
        listed = [id_ for row in rows for id_ in expand(row["ids"])]
        found += [f"{name}: {id_} has {listed.count(id_)} rows" for id_ in wanted if listed.count(id_) != 1]
        for row in rows:
            for id_ in expand(row["ids"]):
                if (fault := _fault(id_, row["last"], tests.get(id_, MarkedTests()))) is not None:
                    found.append(f"{name}: {id_}: {fault}")
        if filled(pages[name], tests) != pages[name]:
            found.append(f"{name} is out of date: run make docs")
    return found


def main(words: list[str]) -> int:
    tests = ids_to_tests(ROOT)
    if words == ["--write"]:
        for name in PAGES:
            path = FOLDER / name
            path.write_text(filled(path.read_text(encoding="utf-8"), tests), encoding="utf-8")
    elif words != ["--check"]:
        print(__doc__)
        return 2
    found = faults({name: (FOLDER / name).read_text(encoding="utf-8") for name in PAGES}, tests)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
