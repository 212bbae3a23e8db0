"""The arrows between rooms, and what pure modules may not touch, read from the import statements."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONNECTOR = ROOT / "connector"

WORDS = {"errors", "options", "message", "bridge", "log"}
MAY_IMPORT = {  # room -> rooms; errors and words may see nothing above them
    "publisher": WORDS,
    "mama": WORDS,
    "flightlog": WORDS,
    "packing": WORDS,
    "bridges": WORDS | {"malamute", "tango"},
    "malamute": WORDS,
    "tango": WORDS,
    "spark": WORDS | {"publisher", "mama", "flightlog", "packing", "bridges", "tango"},
    "conf_file": WORDS,
    "cli": WORDS | {"conf_file", "bridges", "flightlog", "terminal", "malamute", "mama"},
    "terminal": WORDS | {"publisher", "mama", "bridges", "packing", "conf_file", "tango"},
    "__init__": {"publisher", "spark"},
    "testing": WORDS | {"publisher", "mama", "flightlog", "packing", "bridges", "malamute", "tango", "terminal"},
    **dict.fromkeys(WORDS - {"errors"}, WORDS),
    "errors": set(),
}
#: A live JetStream context, or a URL, becomes a bridge by the registry, so that these rooms themselves know none.
EXCEPTIONS = {
    ("publisher/managed", "mama_spark.bridges.attach"),
    ("mama/transport", "mama_spark.bridges.connect"),
}
#: One engine of Malamute keeps its streams in JetStream: the only way from one room of protocols into another's bridge.
THROUGH_NATS = "malamute/engines/jetstream"
PURE = {
    *(WORDS - {"options"}), *(f"options/{name}" for name in ("values", "declare", "transport", "sink", "reading")),
    "spark/offsets", *(f"publisher/{name}" for name in ("flight", "block", "sends", "window", "retry", "ids")),
    *(f"packing/{name}" for name in ("form", "codec", "packer", "ipc", "unpack", "again", "fitting", "bounded")),
    *(f"mama/{name}" for name in ("fieldtype", "status", "values", "msg", "omnm", "frames", "naming", "capture")),
    *(f"mama/{name}" for name in ("states", "topics", "properties", "sources", "events")),
    *(f"bridges/nats/{name}" for name in ("board", "wire", "frames", "headers", "subjects", "acks", "fast")),
    "bridges/nats/records", "bridges/nats/retention", "mama/discovered", "spark/discovery_rows",
    *(f"bridges/nats/{name}" for name in ("changes", "positions", "advisories", "direct")), "bridges/images",
    *(f"malamute/{name}" for name in ("wire", "extensions", "patterns", "queues", "letters", "clients")),
    *(f"malamute/{name}" for name in ("credit", "events", "questions", "server_desk", "client_desk")),
    "bridges/malamute/records", "bridges/malamute/selecting", "malamute/engines/standing", "mama/broker_events",
    "bridges/malamute/discovery_words", "bridges/malamute/discovery_positions",
    *(f"malamute/{name}" for name in ("server_states", "server_machine", "server_outbox", "client_machine")),
    *(f"malamute/engines/{name}" for name in ("__init__", "simple", "frames", "ledger", "dedup", "readers")),
    *(f"tango/{name}" for name in ("types", "topics", "union", "anyvalue", "values", "structs", "frames", "events")),
    *(f"tango/{name}" for name in ("scalars", "fastpath", "counters", "life", "lives", "notices", "routes", "records")),
    *(f"tango/{name}" for name in ("cdr", "giop", "ior", "typecode", "errors", "calls", "negotiation")),
    *(f"tango/{name}" for name in ("device", "criteria", "recording", "restoring", "recorder_settings", "owed")),
    "spark/tango_rows", "malamute/server_mail",
    *(f"tango/source_{n}" for n in ("readings", "channels", "board", "commands", "admin", "machine", "batch")),
    "bridges/tango/columns", "bridges/tango/encode", "tango/serving", "spark/tango_discovery",
    "bridges/malamute/frames", *(f"malamute/engines/{name}" for name in ("selectors", "records", "durable_settings")),
    *(f"malamute/engines/{name}" for name in ("jetstream_names", "jetstream_settings")),
}  # fmt: skip
IMPURE = {"socket", "ssl", "select", "threading", "queue", "concurrent", "time", "asyncio", "subprocess", "nats", "zmq"}


@dataclass(frozen=True)
class Module:
    """One file: ``name`` as in ``spark/offsets``, the absolute names that it imports wherever the statement stands."""

    path: Path
    name: str
    imports: frozenset[str]
    lines: int

    @property
    def room(self) -> str:
        return self.name.split("/")[0]


def imports(path: Path, tree: ast.Module) -> Iterator[str]:
    package = list(path.relative_to(CONNECTOR).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


@cache
def modules() -> list[Module]:
    """All that ships, parsed once."""
    found = []
    for path in sorted(CONNECTOR.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(CONNECTOR).with_suffix("").as_posix().removeprefix("mama_spark/")
        found.append(Module(path, name, frozenset(imports(path, ast.parse(text))), len(text.splitlines())))
    return found


def ours() -> list[Module]:
    """Without the root modules that Spark finds the formats by."""
    return [module for module in modules() if module.path.parent != CONNECTOR]


def top(names: Iterable[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


#: What bridges have in common without knowing each other.
SHARED = ("pool", "images")


def test_imports_go_one_way() -> None:
    wrong = []
    for module in ours():
        for name in module.imports:
            parts = name.split(".")
            if (module.name, name) in EXCEPTIONS:
                continue
            if module.name.startswith(THROUGH_NATS) and parts[:3] == ["mama_spark", "bridges", "nats"]:
                continue
            if parts[0] != "mama_spark" or len(parts) == 1 or parts[1] in (module.room, "__version__"):
                continue
            if parts[1] not in MAY_IMPORT[module.room]:
                wrong.append(f"{module.name} must not import {name}")
    assert wrong == []


def test_bridges_do_not_know_each_other() -> None:
    wrong = []
    for module in ours():
        if module.room == "bridges" and module.name != "bridges/__init__":
            mine = module.name.split("/")[1]
            others = [name.split(".")[2] for name in module.imports if name.startswith("mama_spark.bridges.")]
            wrong += [f"{module.name} must not import bridges.{o}" for o in others if o not in (mine, *SHARED)]
    assert wrong == []


def test_pure_modules_import_no_socket_thread_clock_or_loop() -> None:
    found = {module.name: top(module.imports) & IMPURE for module in ours() if module.name in PURE}
    assert found.keys() == PURE
    assert {name: touched for name, touched in found.items() if touched} == {}


def test_pyspark_is_imported_only_in_the_spark_room() -> None:
    outside = [module for module in ours() if module.room != "spark"]
    assert [module.name for module in outside if top(module.imports) & {"pyspark", "delta"}] == []


def test_nothing_imports_jobs_or_testing_and_modules_stay_small() -> None:
    assert [module.name for module in modules() if top(module.imports) & {"jobs", "tests", "bench"}] == []
    product = [module for module in modules() if module.room != "testing"]
    assert [m.name for m in product if any(n.startswith("mama_spark.testing") for n in m.imports)] == []
    assert [(module.name, module.lines) for module in modules() if module.lines > 600] == []
