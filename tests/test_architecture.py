"""The dependency rules between packages, and what pure modules must not import, read from the import statements."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mama_spark.bridges import __all__ as registry

ROOT = Path(__file__).resolve().parent.parent
CONNECTOR = ROOT / "connector"

CONTRACTS = {
    "errors", "options", "message", "bridge", "record_log", "backoff", "source_expiry", "topics",
    "file_descriptors", "zmq_context", "redaction", "middlewares", "headers",
}  # fmt: skip
#: The one way from a name, a URL or a client to a bridge; the bridges themselves are imported when they are asked for.
REGISTRY = {*(f"bridges.{name}" for name in registry), "bridges.reconnecting"}
#: Package -> packages, modules or functions that it may import. ``errors`` imports ``redaction`` only, the contracts
#: only each other.
MAY_IMPORT = {
    "sending": CONTRACTS,
    "publisher": CONTRACTS | {"sending", "bridges.attach"},
    "mama": CONTRACTS | {"bridges.connect", "openmama_wire"},
    "flightlog": CONTRACTS,
    "packing": CONTRACTS,
    "malamute": CONTRACTS,
    "tango": CONTRACTS,
    "openmama_wire": CONTRACTS | {"mama.messages"},
    "bridges": CONTRACTS | {"sending", "malamute", "tango", "mama.messages", "openmama_wire"},
    "services": CONTRACTS
    | {
        "sending",
        "malamute",
        "tango",
        "mama.messages",
        "openmama_wire",
        "flightlog",
        "packing",
        "bridges.nats",
        "bridges.reconnecting",
    },
    "spark": CONTRACTS
    | REGISTRY
    | {
        "console",
        "metrics",
        "report_page",
        "sending",
        "publisher",
        "mama",
        "flightlog",
        "packing",
        "tango",
        "openmama_wire",
    },
    "conf_file": CONTRACTS,
    "metrics": CONTRACTS | {"sending"},
    "live_view": CONTRACTS | REGISTRY | {"console", "mama"},
    "report_page": CONTRACTS | {"flightlog"},
    "jobs": {"errors"},
    "commands": CONTRACTS
    | REGISTRY
    | {
        "sending",
        "publisher",
        "mama",
        "bridges.nats.server",
        "packing",
        "conf_file",
        "flightlog",
        "console",
        "live_view",
        "report_page",
        "tango",
        "openmama_wire",
        "services",
        "jobs",
    },
    "console": CONTRACTS | REGISTRY | {"mama"},
    "cli": {"errors", "console"},
    "__init__": {"publisher", "report_page", "spark"},
    "lazy_names": set(),
    "testing": CONTRACTS
    | {"sending", "publisher", "mama", "flightlog", "packing", "malamute", "tango", "openmama_wire", "services"},
    **dict.fromkeys(CONTRACTS - {"errors"}, CONTRACTS),
    "errors": {"redaction"},
    "middlewares": set(),
}
#: Modules that do no I/O, start no thread and read no clock.
PURE = {
    "services/openmama_recorder/frame_recorder",
    "services/openmama_recorder/market_data_requests",
    "services/openmama_recorder/record_packer",
    "backoff",
    "bridge",
    "errors",
    "headers",
    "message",
    "middlewares",
    "record_log",
    "redaction",
    "source_expiry",
    "bridges/malamute/discovery/codec",
    "bridges/malamute/discovery/offsets",
    "bridges/malamute/frames",
    "bridges/malamute/read_session",
    "bridges/malamute/records",
    "bridges/malamute/selection",
    "bridges/nats/batches/message_ids",
    "bridges/nats/discovery/advisories",
    "bridges/nats/discovery/events",
    "bridges/nats/discovery/layout",
    "bridges/nats/discovery/offsets",
    "bridges/nats/protocol/acks",
    "bridges/nats/protocol/direct_get",
    "bridges/nats/protocol/fast_batch",
    "bridges/nats/protocol/frames",
    "bridges/nats/protocol/headers",
    "bridges/nats/protocol/parser",
    "bridges/nats/protocol/records",
    "bridges/nats/publish/sent_topics",
    "bridges/nats/read/retention",
    "bridges/nats/subjects",
    "bridges/openmama/field_columns",
    "bridges/openmama/field_types",
    "bridges/openmama/row_codec",
    "bridges/openmama/settings",
    "bridges/snapshot_codec",
    "bridges/tango/columns",
    "bridges/tango/row_codec",
    "malamute/client/calls",
    "malamute/client/connection_settings",
    "malamute/client/log_query_client",
    "malamute/client/messages",
    "malamute/client/registrations",
    "malamute/client/state_machine",
    "malamute/client/states",
    "malamute/protocol/commands",
    "malamute/protocol/credit",
    "malamute/protocol/extensions",
    "malamute/protocol/log_query",
    "malamute/protocol/patterns",
    "malamute/protocol/transition_table",
    "malamute/protocol/ttl",
    "mama/discovery/broker_events",
    "mama/discovery/discovery_rows",
    "mama/messages/column_types",
    "mama/messages/event_records",
    "mama/messages/field_runs",
    "mama/messages/field_types",
    "mama/messages/msg",
    "mama/messages/omnm",
    "mama/messages/omnm_columns",
    "mama/messages/source_records",
    "mama/messages/status",
    "mama/messages/typed_columns",
    "mama/messages/values",
    "mama/properties",
    "mama/states",
    "mama/topics",
    "openmama_wire/peer/frame_columns",
    "openmama_wire/peer/frame_filter",
    "openmama_wire/peer/inboxes",
    "openmama_wire/peer/naming_client",
    "openmama_wire/peer/settings",
    "openmama_wire/peer/subscription_table",
    "openmama_wire/log/gap_tracker",
    "openmama_wire/log/records",
    "openmama_wire/peer/property_urls",
    "openmama_wire/protocol/dictionary",
    "openmama_wire/protocol/frames",
    "openmama_wire/protocol/framing_oz",
    "openmama_wire/protocol/framing_zmq",
    "openmama_wire/protocol/framings",
    "openmama_wire/protocol/market_data",
    "openmama_wire/protocol/naming",
    "options/declare",
    "options/paths",
    "options/publishing/announcement",
    "options/publishing/failures",
    "options/publishing/flight_log",
    "options/publishing/flow",
    "options/publishing/identity",
    "options/publishing/messages",
    "options/publishing/middlewares",
    "options/publishing/openmama",
    "options/reading",
    "options/sink",
    "options/tables",
    "options/toml_file",
    "options/transport",
    "options/urls",
    "options/uses",
    "options/values",
    "options/window",
    "packing/chunked_unpack",
    "packing/codec",
    "packing/compression",
    "packing/decompress",
    "packing/format",
    "packing/gathering/value_ipc",
    "packing/gathering/value_lines",
    "packing/gathering/payload_places",
    "packing/gathering/value_views",
    "packing/ipc",
    "packing/json_text",
    "packing/pack_headers",
    "packing/pack_rows",
    "packing/packer",
    "packing/row_contents",
    "packing/schema_cast",
    "packing/split",
    "packing/unpacked",
    "packing/unpacker",
    "sending/backpressure",
    "sending/batch_ledger",
    "sending/flight",
    "sending/flight_batch",
    "publisher/exactly_once/claims",
    "publisher/exactly_once/found_rows",
    "publisher/exactly_once/protocol",
    "publisher/exactly_once/stored_rows",
    "publisher/ids",
    "publisher/bloom_filter",
    "publisher/rate_limiter",
    "sending/outage",
    "sending/resend_limits",
    "sending/resend_queue",
    "sending/retry",
    "sending/send_index",
    "sending/window",
    "services/malamute_broker/engines/__init__",
    "services/malamute_broker/engines/ack_tracker",
    "services/malamute_broker/engines/base",
    "services/malamute_broker/engines/commands",
    "services/malamute_broker/engines/durable/dedup",
    "services/malamute_broker/engines/frame_columns",
    "services/malamute_broker/engines/records",
    "services/malamute_broker/engines/registry",
    "services/malamute_broker/engines/reports",
    "services/malamute_broker/engines/simple",
    "services/malamute_broker/engines/stored",
    "services/malamute_broker/engines/subscription_cursor",
    "services/malamute_broker/engines/subscription_index",
    "services/malamute_broker/engines/durable/settings",
    "services/malamute_broker/engines/jetstream/message_codec",
    "services/malamute_broker/engines/jetstream/settings",
    "services/malamute_broker/session/engine_backlog",
    "services/malamute_broker/session/broker_events",
    "services/malamute_broker/session/byte_queue",
    "services/malamute_broker/session/client_output",
    "services/malamute_broker/session/client_session",
    "services/malamute_broker/session/client_table",
    "services/malamute_broker/session/counters",
    "services/malamute_broker/session/engine_credit",
    "services/malamute_broker/session/delivery_scheduler",
    "services/malamute_broker/session/streams/engine_answer_handler",
    "services/malamute_broker/session/streams/engine_command_queue",
    "services/malamute_broker/session/streams/log_query_server",
    "services/malamute_broker/session/mailboxes/mailbox_receipts",
    "services/malamute_broker/session/mailboxes/mailbox_server",
    "services/malamute_broker/session/mailboxes/mailbox_store",
    "services/malamute_broker/session/streams/ping_handler",
    "services/malamute_broker/session/streams/publish_windows",
    "services/malamute_broker/session/streams/publish_handler",
    "services/malamute_broker/session/repeat_limiter",
    "services/malamute_broker/session/settings",
    "services/malamute_broker/session/state_machine",
    "services/malamute_broker/session/states",
    "services/malamute_broker/session/streams/stream_opener",
    "services/malamute_broker/session/streams/stream_table",
    "services/malamute_broker/session/streams/subscription_handler",
    "services/openmama_source/market_data_source",
    "services/openmama_source/record_fields",
    "services/openmama_source/source_events",
    "services/tango_recorder/settings",
    "services/tango_server/admin_commands",
    "services/tango_server/attribute_state",
    "services/tango_server/replay/awaited_clients",
    "services/tango_server/command_list",
    "services/tango_server/event_filters",
    "services/tango_server/device",
    "services/tango_server/device_servant",
    "services/tango_server/dserver_servant",
    "services/tango_server/event_supplier",
    "services/tango_server/replay/log_replayer",
    "services/tango_server/attribute_readings",
    "services/tango_server/value_batches",
    "live_view/model",
    "report_page/standstills",
    "spark/discovery/rows",
    "spark/discovery/tango",
    "spark/sink/encoding/header_entries",
    "spark/sink/encoding/trace_headers",
    "spark/subscribe/offsets",
    "spark/trace_column",
    "spark/write_counts",
    "spark/subscribe/tango_rows",
    "topics",
    "tango/archive_strategies",
    "tango/client/event_dispatcher",
    "tango/client/losses/loss_detector",
    "tango/client/subscription_events",
    "tango/client/subscription_machine",
    "tango/client/subscription_states",
    "tango/errors",
    "tango/topics",
    "tango/types",
    "tango/events/batch_decoder",
    "tango/events/sequence_tracker",
    "tango/events/event_codec",
    "tango/events/frame_layout",
    "tango/events/frames",
    "tango/giop/assembler",
    "tango/giop/cdr",
    "tango/giop/ior",
    "tango/giop/messages",
    "tango/giop/typecode",
    "tango/idl/any_value",
    "tango/idl/calls",
    "tango/idl/negotiation",
    "tango/idl/structs",
    "tango/idl/union",
    "tango/idl/values",
    "tango/log/pending_gaps",
    "tango/log/recorder_state",
    "tango/log/records",
    "tango/log/recovery",
}
#: Modules that read the time of day, and what for.
TIME_OF_DAY = {
    "services/openmama_recorder/recorder",
    "bridges/malamute/discovery/bridge",  # stamps events of its own
    "bridges/memory/bridge",  # stamps messages; never falls
    "bridges/memory/discovery",  # once, where its clock begins
    "bridges/nats/discovery/streams",  # stamps an image where no stream is there to tell the server's time
    "flightlog/adopt_orphans",  # is compared with the times of files, by days
    "flightlog/commit",  # is compared with the times of files, by days
    "flightlog/maintenance",  # is compared with the times of files and with dates, by days
    "flightlog/transaction",  # stamps
    "publisher/clock",  # once a task, where the times of its flight log begin
    "mama/publisher/dq",  # stamps messages
    "services/malamute_broker/broker/event_publisher",  # stamps events
    "services/openmama_source/event_reporter",  # stamps events
    "services/malamute_broker/engines/durable/store_reader",  # stamps messages; never falls. Retention by age, as told
    "services/tango_recorder/recorder",  # stamps records
    "services/tango_server/event_source",  # stamps events
    "spark/flight_log_view",  # the time of the report
    "report_page/page",  # the time of the report, and what "the last hour" is
    "spark/telemetry/read_metrics",  # is compared with the times of messages
    "spark/formats",  # what "now" is in an option
    "tango/client/event_consumer",  # stamps events
    "tango/client/event_queue",  # stamps events
    "tango/client/losses/loss_checks",  # stamps events
    "tango/client/zmq_event_receiver",  # stamps events
}
IMPURE = {"socket", "ssl", "select", "threading", "queue", "concurrent", "time", "asyncio", "subprocess", "nats", "zmq"}
#: More modules than that in one folder are split by responsibility.
MOST_MODULES = 16


@dataclass(frozen=True)
class Module:
    """One file.

    :ivar name: as in ``spark/session``
    :ivar imports: the absolute names that it imports, wherever the statement stands
    :ivar early: those that it imports when it is imported itself
    """

    path: Path
    name: str
    imports: frozenset[str]
    early: frozenset[str]
    classes: tuple[str, ...]
    lines: int

    @property
    def package(self) -> str:
        return self.name.split("/")[0]

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


@cache
def modules() -> list[Module]:
    """All that ships, parsed once."""
    found = []
    for path in sorted(CONNECTOR.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        found.append(
            Module(
                path=path,
                name=path.relative_to(CONNECTOR).with_suffix("").as_posix().removeprefix("mama_spark/"),
                imports=frozenset(names_in(path, ast.walk(tree))),
                early=frozenset(names_in(path, statements(tree.body))),
                classes=tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef)),
                lines=len(text.splitlines()),
            )
        )
    return found


def ours() -> list[Module]:
    """Without the root modules that Spark finds the formats by."""
    return [module for module in modules() if module.path.parent != CONNECTOR]


def top(names: Iterable[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


#: What bridges have in common without knowing each other.
SHARED = ("connection_pool", "recorded_discovery", "snapshot_codec")


def test_imports_go_one_way() -> None:
    wrong = []
    for module in ours():
        allowed = {module.package, "__version__", "lazy_names"} | MAY_IMPORT[module.package]
        for name in module.imports:
            root, _, rest = name.partition(".")
            if root == "mama_spark" and rest and not any(f"{rest}.".startswith(f"{some}.") for some in allowed):
                wrong.append(f"{module.name} must not import {name}")
    assert wrong == []


def test_messages_of_mama_are_below_everything_that_sends_them() -> None:
    """``mama`` is above the bridges; its messages are below them, because the wire carries them."""
    found = {
        f"{module.name}: {name}"
        for module in ours()
        if module.name.startswith("mama/messages/")
        for name in module.imports
        if name.startswith("mama_spark.") and not name.startswith(("mama_spark.mama.messages.", "mama_spark.errors."))
    }
    assert found == set()


def test_bridges_do_not_know_each_other() -> None:
    wrong = []
    for module in ours():
        if module.package == "bridges" and module.name != "bridges/__init__":
            mine = module.name.split("/")[1]
            others = [name.split(".")[2] for name in module.imports if name.startswith("mama_spark.bridges.")]
            wrong += [f"{module.name} must not import bridges.{o}" for o in others if o not in (mine, *SHARED)]
    assert wrong == []


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


def test_pure_modules_import_no_socket_thread_clock_or_loop() -> None:
    found = {module.name: top(module.imports) & IMPURE for module in ours() if module.name in PURE}
    assert found.keys() == PURE
    assert {name: touched for name, touched in found.items() if touched} == {}


def test_clocks_that_can_be_set_decide_nothing() -> None:
    """How long something took, and what expires, is measured by a monotonic clock: a clock that is set by an hour must
    neither end a lease nor forget an id. The time of day stamps what is written down, and these modules read it."""
    call = re.compile(r"\b(?:time|_?clock)\.time(?:_ns)?\(|\bdatetime\.(?:now|utcnow|today)\(")
    found = {module.name for module in ours() if call.search(module.path.read_text(encoding="utf-8"))}
    assert {name for name in found if not name.startswith("testing/")} == TIME_OF_DAY


def test_pyspark_is_imported_only_in_the_package_spark() -> None:
    outside = [module for module in ours() if module.package != "spark"]
    assert [module.name for module in outside if top(module.imports) & {"pyspark", "delta"}] == []


def test_nothing_imports_jobs_or_testing_and_modules_stay_small() -> None:
    assert [module.name for module in modules() if top(module.imports) & {"jobs", "tests", "bench"}] == []
    product = [module for module in modules() if module.package != "testing"]
    assert [m.name for m in product if any(n.startswith("mama_spark.testing") for n in m.imports)] == []
    assert [(module.name, module.lines) for module in modules() if module.lines > 600] == []
