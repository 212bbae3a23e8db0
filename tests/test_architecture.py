"""The dependency rules between packages, and what pure modules must not import, read from the import statements."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONNECTOR = ROOT / "connector"

#: The rooms, lowest first: a module imports from its own room and from lower ones.
MIDDLEWARES = {"nats", "malamute", "tango", "openmama", "memory"}
LAYERS = (
    {"lazy_names"},
    {"contracts"},
    {"options"},
    {"registry"},
    {"publishing", "packing", "flightlog", "discovery"},
    {"telemetry"},
    {"audit", "mama", "recording", "report"},
    {"console"},
    MIDDLEWARES,
    {"jobs", "spark"},
    {"cli", "testing"},
    {"__init__"},
)
LAYER = {room: layer for layer, rooms in enumerate(LAYERS) for room in rooms}
#: What modules must not import that do no I/O, start no thread and read no clock. Their docstrings say "Pure."
IMPURE = {"socket", "ssl", "select", "threading", "queue", "concurrent", "time", "asyncio", "subprocess", "nats", "zmq"}
ATTRIBUTE_CALLS = ("getattr", "setattr", "hasattr")
#: More modules than that in one folder are split by responsibility.
MOST_MODULES = 16
MOST_LINES = 400  #: of code, of one module


@dataclass(frozen=True)
class Module:
    """One file.

    :ivar name: as in ``spark/session``
    :ivar imports: the absolute names that it imports, wherever the statement stands
    :ivar early: those that it imports when it is imported itself
    :ivar lines: of code
    :ivar pure: as its docstring says
    :ivar defined: names of its functions, classes and attributes
    :ivar private: names with one underscore that it reads of something other than ``self`` or ``cls``
    """

    path: Path
    name: str
    imports: frozenset[str]
    early: frozenset[str]
    lines: int
    pure: bool
    defined: frozenset[str]
    private: frozenset[str]

    @property
    def package(self) -> str:
        return self.name.split("/")[0]

    @property
    def test_kit(self) -> bool:
        return "testing" in self.name.split("/")

    @property
    def dotted(self) -> str:
        name = self.path.relative_to(CONNECTOR).with_suffix("").as_posix().replace("/", ".")
        return name.removesuffix(".__init__")


def names_in(path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    package = list(path.relative_to(CONNECTOR).parent.parts)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs when the module is imported."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from statements(node.orelse)
            continue
        yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            yield from statements(getattr(node, field, []))


def _defined(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.Attribute(ast.Name("self" | "cls"), name) | ast.AnnAssign(ast.Name(name)):
                yield name
            case ast.Assign(targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def _private_reads(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        name, of = "", None
        if isinstance(node, ast.Attribute):
            name, of = node.attr, node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ATTRIBUTE_CALLS:
            of, second = node.args[:2]
            name = str(second.value) if isinstance(second, ast.Constant) else ""
        if re.match(r"_[a-z]", name) and not (isinstance(of, ast.Name) and of.id in ("self", "cls")):
            yield name


def code_lines(text: str, nodes: Iterable[ast.AST]) -> int:
    """Without comments, docstrings and blank lines."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = "\n".join(ast.get_docstring(node, clean=False) or "" for node in nodes if isinstance(node, documented))
    rest = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return len(rest) - sum(1 for line in docs.splitlines() if line.strip() and not line.lstrip().startswith("#"))


@cache
def modules() -> list[Module]:
    """All that ships, parsed once."""
    found = []
    for path in sorted(CONNECTOR.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        found.append(
            Module(
                path=path,
                name=path.relative_to(CONNECTOR).with_suffix("").as_posix().removeprefix("mama_spark/"),
                imports=frozenset(names_in(path, nodes)),
                early=frozenset(names_in(path, statements(tree.body))),
                lines=code_lines(text, nodes),
                pure=re.search(r"\bPure[.:;]", ast.get_docstring(tree) or "") is not None,
                defined=frozenset(_defined(nodes)),
                private=frozenset(_private_reads(nodes)),
            )
        )
    return found


def ours() -> list[Module]:
    """Without the root modules that Spark finds the formats by."""
    return [module for module in modules() if module.path.parent != CONNECTOR]


def top(names: Iterable[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_imports_go_one_way() -> None:
    """A middleware is imported by itself only: others name its parts (``contracts/middlewares.py``)."""
    wrong = []
    for module in ours():
        for name in module.imports:
            room = ([*name.split("."), ""])[1]
            if not name.startswith("mama_spark.") or room in (module.package, "__version__"):
                continue
            if LAYER[room] >= LAYER[module.package] or room in MIDDLEWARES:
                wrong.append(f"{module.name} must not import {name}")
    assert wrong == []


def test_messages_of_mama_are_below_everything_that_sends_them() -> None:
    """``mama`` is above the bridges; its messages are below them, because the wire carries them."""
    found = {
        f"{module.name}: {name}"
        for module in ours()
        if module.name.startswith("mama/messages/")
        for name in module.imports
        if name.startswith("mama_spark.")
        and not name.startswith(("mama_spark.mama.messages.", "mama_spark.contracts.errors."))
    }
    assert found == set()


def cycles(late: bool) -> list[list[str]]:
    """Modules that import each other, by Tarjan's algorithm: the strongly connected components of two and more.

    :param late: also by what they import inside functions, and for annotations alone
    """
    known = {module.dotted: module for module in ours()}
    graph: dict[str, list[str]] = {}
    for name, module in known.items():
        wanted = module.imports if late else module.early
        targets = {n if n in known else n.rpartition(".")[0] for n in wanted}
        graph[name] = sorted(t for t in targets if t in known and t != name)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            at = stack.index(name)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                found.append(sorted(known[n].name for n in component))

    for name in graph:
        if name not in index:
            visit(name)
    return sorted(found)


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert cycles(late=False) == []


def test_annotations_and_late_imports_make_no_cycle() -> None:
    assert cycles(late=True) == []


def test_folders_stay_small() -> None:
    folders: dict[str, int] = {}
    for module in ours():
        folder = module.path.parent.relative_to(CONNECTOR).as_posix()
        folders[folder] = folders.get(folder, 0) + (module.path.name != "__init__.py")
    assert {folder: count for folder, count in folders.items() if count > MOST_MODULES} == {}


def test_modules_that_are_pure_import_no_socket_thread_clock_or_loop() -> None:
    found = {module.name: top(module.imports) & IMPURE for module in ours() if module.pure}
    assert len(found) > 150, "the word is read"
    assert {name: touched for name, touched in found.items() if touched} == {}


def test_clocks_that_can_be_set_decide_nothing() -> None:
    """How long something took, and what expires, is measured by a monotonic clock: a clock that is set by an hour must
    neither end a lease nor forget an id. The time of day stamps what is written down; a module says what it is for."""
    call = re.compile(r"\b(?:time|_?clock)\.time(?:_ns)?\(|\bdatetime\.(?:now|utcnow|today)\(")
    texts = {module.name: module.path.read_text(encoding="utf-8") for module in ours() if not module.test_kit}
    wrong = {name for name, text in texts.items() if bool(call.search(text)) != ("# Time of day: " in text)}
    assert wrong == set(), "they read it and have no comment '# Time of day: what for.', or have one and do not"


#: Where pyspark may be imported: what runs in a session of Spark, or in its workers.
IN_SPARK = ("spark/", "tango/archive")


def test_pyspark_is_imported_only_where_spark_is() -> None:
    outside = [module for module in ours() if not module.name.startswith(IN_SPARK)]
    assert [module.name for module in outside if top(module.imports) & {"pyspark", "delta"}] == []


def test_the_version_of_spark_names_deltas_jars_and_decides_nothing_else() -> None:
    """``spark/features`` finds what the running Spark has by trying it."""
    asks = re.compile(r"pyspark\.__version__|\bspark\.version\b|version\(.pyspark.\)")
    found = [module.name for module in modules() if asks.search(module.path.read_text(encoding="utf-8"))]
    assert found == ["cli/commands/jobs"]


def test_nothing_imports_jobs_or_testing_and_modules_stay_small() -> None:
    assert [module.name for module in modules() if top(module.imports) & {"jobs", "tests", "bench"}] == []
    product = [module for module in modules() if not module.test_kit]
    assert [m.name for m in product if any("testing" in name.split(".") for name in m.imports)] == []
    assert [(module.name, module.lines) for module in modules() if module.lines > MOST_LINES] == []


#: Names that are private to other packages, which have no public ones for this, by the module that uses them.
PRIVATE_TO_OTHERS = {
    "console/help": {"_choices_actions"},  # argparse: the descriptions of subcommands
    "spark/announced": {"_jsq"},  # pyspark: what the JVM knows of a query
    "spark/last_write": {"_jvm"},
    "spark/register": {"_get_j_spark_session_class", "_jsparkSession", "_jvm"},
}
#: They begin so, and are public.
PUBLIC = {"_asdict", "_repr_html_"}


def test_what_is_private_to_other_packages_is_used_where_the_list_says() -> None:
    own = PUBLIC.union(*(module.defined for module in ours()))
    read = {module.name: module.private - own for module in ours()}
    assert {name: private for name, private in read.items() if private} == PRIVATE_TO_OTHERS
