"""The middlewares: their names, URL schemes, what each can do, and where its parts are. Options, error messages, the
registry of parts, the command ``mama`` and the documentation take them from here.

Those of this package stand in this table. Other packages have an entry point of the group ``mama_spark.middlewares``
whose object is a :class:`Middleware`. Entry points are read when a name or scheme is asked for that is not in the
table: looking for them takes longer than all else that a process of Spark's does at its start.
"""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass
from importlib import import_module
from typing import Any

GROUP = "mama_spark.middlewares"

log = logging.getLogger("mama_spark")
_NAME = re.compile(r"[a-z][a-z0-9+.-]*")  #: of a middleware, and of a URL scheme (RFC 3986)
_loading = threading.RLock()  #: a module of another package may itself ask for a middleware
_begun = False


@dataclass(frozen=True, slots=True)
class Middleware:
    """One middleware: its abilities and parts.

    A part is ``module:attribute``, or a module, which is imported when it is asked for; None: the middleware has no
    such part. What factories make is not opened yet.

    :ivar name: name of its bridge, the value of the option ``bridge``
    :ivar title: name for people
    :ivar schemes: schemes of its URLs
    :ivar package: package with its parts, as ``pip install`` names it
    :ivar extra: extra of the package, which installs what the parts need; None: the package itself does

    :ivar url_login: whether its URLs may hold a login
    :ivar stream_of_each_row: a row may name its stream; elsewhere the topic decides
    :ivar patterns: readers name a stream, which may follow the host in the URL, and a pattern of its topics (Malamute)
    :ivar named_streams: a server keeps many logs, each with a name, which the options ``stream`` and ``streams`` take
    :ivar in_process: exists in one process only
    :ivar ordered_batches: keeps the order of messages that it acknowledges in batches
    :ivar options: options of our middlewares that it takes, too, such as ``("connectTimeout", "tlsCa", "exactlyOnce")``
    :ivar property_keys: name of its bridge in ``mama.properties``; None: its name

    :ivar publisher_bridge: ``(o: SinkOptions) -> PublisherBridge``; with the option ``log`` ``(o, bridge of the log)``
    :ivar attach: ``(context, loop[, client]) -> PublisherBridge``, through a live object of :attr:`client`
    :ivar client: the root module of the client library that ``attach`` takes objects of
    :ivar row_codec: ``(o: SinkOptions) -> RowCodec``
    :ivar key_codec: ``(o: SinkOptions) -> RowCodec``, which makes messages of changes to the keys of ``o.bucket``
    :ivar batch_ledger: ``(o: SinkOptions) -> BatchLedger``
    :ivar check_transport: ``(o: SinkOptions, topics: list[str]) -> list[tuple[bool, str]]``: fine or not, and a text
    :ivar log_bridge: ``(o: TransportOptions, timeout: float) -> RecordLogBridge``; None: it stores nothing that could
        be read again
    :ivar served_log_bridge: ``(o: TransportOptions, timeout: float) -> ServedLogBridge``: logs that a Malamute broker
        can serve as its streams
    :ivar operations: ``(headers: pa.MapArray | None, n: int) -> pa.StringArray``: what each of ``n`` records does to
        its topic: ``put``, ``delete``, ``purge`` or ``expired``; None: each is a put
    :ivar key_value: a module: layout of key-value buckets
    :ivar discovery_bridge: ``(o: TransportOptions) -> DiscoveryBridge``
    :ivar record_format: a ``RecordFormat``: how records of its recorder become columns of ``mamasub``
    :ivar recorded_discovery: ``(log: RecordLogBridge, name: str | None) -> DiscoveryBridge`` of such records
    :ivar discovery_row: ``(change: DiscoveryEvent) -> tuple[DiscoveryRow, int]``: the row of one of those, and its time
    :ivar recorder: the ``RecordSource`` of ``mama record``, made of its settings
    :ivar property_urls: ``(properties, transport, framing) -> list[str]``: URLs of a transport of ``mama.properties``
    :ivar commands: dict of the subcommands that it adds to ``mama``: name -> ``Subcommand``
    :ivar documents: ``() -> list[FileSection]``: its configuration files, for ``mama docs``
    """

    name: str
    title: str
    schemes: tuple[str, ...]
    package: str = "mama-spark"
    extra: str | None = None

    url_login: bool = False
    stream_of_each_row: bool = False
    patterns: bool = False
    named_streams: bool = True
    in_process: bool = False
    ordered_batches: bool = False
    options: tuple[str, ...] = ()
    property_keys: str | None = None

    publisher_bridge: str | None = None
    attach: str | None = None
    client: str | None = None
    row_codec: str | None = None
    key_codec: str | None = None
    batch_ledger: str | None = None
    check_transport: str | None = None
    log_bridge: str | None = None
    served_log_bridge: str | None = None
    operations: str | None = None
    key_value: str | None = None
    discovery_bridge: str | None = None
    record_format: str | None = None
    recorded_discovery: str | None = None
    discovery_row: str | None = None
    recorder: str | None = None
    property_urls: str | None = None
    commands: str | None = None
    documents: str | None = None

    @property
    def install(self) -> str:
        """The command that installs what its parts need."""
        return f"pip install {self.package}" if self.extra is None else f"pip install '{self.package}[{self.extra}]'"


def imported(part: str) -> Any:
    """The object that a part names.

    :raises ModuleNotFoundError: what it needs is not installed
    """
    module, _, attribute = part.partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


_NATS = Middleware(
    "nats", "NATS", ("nats", "tls"), url_login=True, ordered_batches=True,
    publisher_bridge="mama_spark.nats:publisher_bridge",
    attach="mama_spark.nats:attach",
    client="nats",
    key_codec="mama_spark.nats:key_codec",
    batch_ledger="mama_spark.nats:batch_ledger",
    check_transport="mama_spark.nats:check_transport",
    log_bridge="mama_spark.nats:log_bridge",
    served_log_bridge="mama_spark.nats:log_bridge",
    operations="mama_spark.nats.protocol.key_value:operations_of",
    key_value="mama_spark.nats.protocol.key_value",
    discovery_bridge="mama_spark.nats:discovery_bridge",
    commands="mama_spark.nats.commands:COMMANDS",
)  # fmt: skip
_MALAMUTE = Middleware(
    "malamute", "Malamute", ("mlp",), extra="malamute", stream_of_each_row=True, patterns=True,
    publisher_bridge="mama_spark.malamute.bridge:publisher_bridge",
    batch_ledger="mama_spark.malamute.bridge:batch_ledger",
    check_transport="mama_spark.malamute.bridge:check_transport",
    log_bridge="mama_spark.malamute.bridge:log_bridge",
    operations="mama_spark.malamute.bridge.records:operations_of",
    discovery_bridge="mama_spark.malamute.bridge:discovery_bridge",
    commands="mama_spark.malamute.commands:COMMANDS",
    documents="mama_spark.malamute.broker.configuration:documents",
)  # fmt: skip
_MEMORY = Middleware(
    "memory", "memory", ("memory",), named_streams=False, in_process=True,
    publisher_bridge="mama_spark.memory:publisher_bridge",
    log_bridge="mama_spark.memory:log_bridge",
    discovery_bridge="mama_spark.memory:discovery_bridge",
)  # fmt: skip
_TANGO = Middleware(
    "tango", "Tango", ("tango",), extra="tango",
    publisher_bridge="mama_spark.tango.bridge:publisher_bridge",
    row_codec="mama_spark.tango.bridge:row_codec",
    record_format="mama_spark.tango.rows:FORMAT",
    recorded_discovery="mama_spark.tango.bridge.discovery:RecordedDevices",
    discovery_row="mama_spark.tango.rows.device_events:discovery_row",
    recorder="mama_spark.tango.recorder.record_source:TangoRecordSource",
    commands="mama_spark.tango.commands:COMMANDS",
    documents="mama_spark.tango.recorder.settings:documents",
)  # fmt: skip
_OPENMAMA = Middleware(
    "openmama", "OpenMAMA", ("oz", "zmq"), extra="openmama", property_keys="zmq",
    publisher_bridge="mama_spark.openmama.bridge:publisher_bridge",
    row_codec="mama_spark.openmama.bridge:row_codec",
    record_format="mama_spark.openmama.rows:FORMAT",
    recorded_discovery="mama_spark.openmama.discovery:RecordedPeers",
    discovery_row="mama_spark.openmama.discovery:discovery_row",
    recorder="mama_spark.openmama.recorder.record_source:MamaRecordSource",
    property_urls="mama_spark.openmama.wire.settings:property_urls",
    commands="mama_spark.openmama.commands:COMMANDS",
    documents="mama_spark.openmama.recorder.settings:documents",
)  # fmt: skip

#: By name: those of this package, and those of others once one of them was asked for.
MIDDLEWARES = {one.name: one for one in (_NATS, _MALAMUTE, _MEMORY, _TANGO, _OPENMAMA)}
SCHEMES = {scheme: one for one in MIDDLEWARES.values() for scheme in one.schemes}


def find(name: str) -> Middleware | None:
    """The middleware of this name."""
    if name not in MIDDLEWARES:
        load_others()
    return MIDDLEWARES.get(name)


def of_url(url: str) -> Middleware | None:
    """The middleware that URLs of this scheme belong to."""
    scheme = url.partition("://")[0].lower()
    if scheme not in SCHEMES:
        load_others()
    return SCHEMES.get(scheme)


def load_others() -> None:
    """Read the entry points of other packages, once. One that cannot be loaded, cannot be named in a URL, or names what
    another middleware has, is reported and left out."""
    global _begun
    with _loading:
        if _begun:
            return
        _begun = True
        _load_others()


def _load_others() -> None:
    from importlib.metadata import entry_points  # late: see above

    for point in entry_points(group=GROUP):
        try:
            found = point.load()
            if not isinstance(found, Middleware):
                raise TypeError(f"{point.value} is no Middleware")
            if not isinstance(found.schemes, tuple) or not all(map(_NAME.fullmatch, (found.name, *found.schemes))):
                raise ValueError(f"name and schemes must be lower-case words, got {found.name!r}, {found.schemes!r}")
            if taken := {found.name, *found.schemes} & {*MIDDLEWARES, *SCHEMES}:
                raise ValueError(f"there is a middleware with {', '.join(sorted(taken))} already")
        except (Exception, SystemExit) as e:  # noqa: BLE001  whatever the module of another package does
            package = point.dist.name if point.dist is not None else point.module
            log.warning("the middleware %s of the package %s cannot be used: %s", point.name, package, e)
            continue
        MIDDLEWARES[found.name] = found
        SCHEMES.update(dict.fromkeys(found.schemes, found))
