"""The middlewares that have a bridge: their names, URL schemes, and what installs them. One entry each; options, error
messages, the registry of bridges and the documentation take them from here. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Middleware:
    """One middleware.

    :ivar name: of its bridge, the value of the option ``bridge``
    :ivar module: that makes its parts
    :ivar title: for people
    :ivar schemes: of its URLs
    :ivar extra: of the package, which installs what the bridge needs; None: the package itself does
    :ivar url_login: its URLs may hold a login
    :ivar stream_of_each_row: a row may name its stream; elsewhere the topic decides
    :ivar patterns: streams are read by pattern, and the stream may follow the host in the URL
    :ivar keeps_logs: stores records that can be read again
    :ivar named_streams: a server keeps many logs, each with a name
    :ivar in_process: exists in one process only
    :ivar recorded_discovery: ``module:class`` of what reads the sources that a recorder has written
    :ivar ordered_batches: keeps the order of messages that it acknowledges in batches
    """

    name: str
    module: str
    title: str
    schemes: tuple[str, ...]
    extra: str | None = None
    url_login: bool = False
    stream_of_each_row: bool = False
    patterns: bool = False
    keeps_logs: bool = True
    named_streams: bool = True
    in_process: bool = False
    ordered_batches: bool = False
    recorded_discovery: str | None = None

    @property
    def install(self) -> str:
        """The command that installs what the bridge needs."""
        return "pip install mama-spark" if self.extra is None else f"pip install 'mama-spark[{self.extra}]'"


#: By name.
MIDDLEWARES = {
    middleware.name: middleware
    for middleware in (
        Middleware("nats", "mama_spark.nats", "NATS", ("nats", "tls"), url_login=True, ordered_batches=True),
        Middleware(
            "malamute",
            "mama_spark.malamute.bridge",
            "Malamute",
            ("mlp",),
            extra="malamute",
            stream_of_each_row=True,
            patterns=True,
        ),
        Middleware("memory", "mama_spark.memory", "memory", ("memory",), named_streams=False, in_process=True),
        Middleware(
            "tango",
            "mama_spark.tango.bridge",
            "Tango",
            ("tango",),
            extra="tango",
            keeps_logs=False,
            recorded_discovery="mama_spark.tango.bridge.discovery:RecordedDevices",
        ),
        Middleware(
            "openmama",
            "mama_spark.openmama.bridge",
            "OpenMAMA",
            ("oz", "zmq"),
            extra="openmama",
            keeps_logs=False,
            recorded_discovery="mama_spark.openmama.bridge.recorded_peers:RecordedPeers",
        ),
    )
}

#: URL scheme -> name of its middleware.
SCHEMES = {scheme: middleware.name for middleware in MIDDLEWARES.values() for scheme in middleware.schemes}
