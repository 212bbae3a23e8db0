"""The arrows between rooms, and what pure modules may not touch, read from the import statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONNECTOR = ROOT / "connector"
MODULES = sorted(CONNECTOR.rglob("*.py"))

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


def imports(path: Path) -> Iterator[str]:
    """Absolute names of all that a module imports, wherever in it the statement stands."""
    package = list(path.relative_to(CONNECTOR).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def name_of(path: Path) -> str:
    return path.relative_to(CONNECTOR / "mama_spark").with_suffix("").as_posix()


#: What bridges have in common without knowing each other.
SHARED = ("pool", "images")
OURS = [p for p in MODULES if p.parent != CONNECTOR]


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    room = name_of(path).split("/")[0]
    for name in imports(path):
        parts = name.split(".")
        if (name_of(path), name) in EXCEPTIONS:
            continue
        if name_of(path).startswith(THROUGH_NATS) and parts[:3] == ["mama_spark", "bridges", "nats"]:
            continue
        if parts[0] != "mama_spark" or len(parts) == 1 or parts[1] in (room, "__version__"):
            continue
        assert parts[1] in MAY_IMPORT[room], f"{room} must not import {name}"


@pytest.mark.parametrize("path", [p for p in OURS if name_of(p).startswith("bridges/")], ids=name_of)
def test_bridges_do_not_know_each_other(path: Path) -> None:
    mine = name_of(path).split("/")[1]
    for name in imports(path):
        parts = name.split(".")
        if mine != "__init__" and parts[:2] == ["mama_spark", "bridges"] and len(parts) > 2:
            assert parts[2] in (mine, *SHARED), f"bridges.{mine} must not import {name}"


@pytest.mark.parametrize("module", sorted(PURE))
def test_pure_modules_import_no_socket_thread_clock_or_loop(module: str) -> None:
    path = CONNECTOR / "mama_spark" / f"{module}.py"
    touched = {name.split(".")[0] for name in imports(path)} & IMPURE
    assert not touched


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(CONNECTOR).as_posix())
def test_pyspark_is_imported_only_in_the_spark_room(path: Path) -> None:
    if "spark" not in path.relative_to(CONNECTOR).parts[1:2]:
        assert not {name.split(".")[0] for name in imports(path)} & {"pyspark", "delta"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(CONNECTOR).as_posix())
def test_nothing_imports_jobs_or_testing_and_modules_stay_small(path: Path) -> None:
    names = list(imports(path))
    assert not [n for n in names if n.split(".")[0] in ("jobs", "tests", "bench")]
    if "testing" not in path.parts:
        assert not [n for n in names if n.startswith("mama_spark.testing")]
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 600
