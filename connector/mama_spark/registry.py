"""The parts of the middlewares, imported when they are asked for: :mod:`mama_spark.contracts.middlewares` says which
there are, and where, and which middleware a URL chooses (``of_url``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .contracts.bridge import DiscoveryBridge, PublisherBridge
from .contracts.errors import ConfigError
from .contracts.middlewares import MIDDLEWARES, Middleware, find, imported, load_others
from .contracts.record_log import RecordLogBridge
from .contracts.served_log import ServedLogBridge
from .options import DiscoveryOptions, SinkOptions, SubscribeOptions, TransportOptions
from .options.stream_names import chosen_streams
from .options.urls import split_stream

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from .contracts.batch_ledger import BatchLedger
    from .contracts.message import RecordFormat, RowCodec

__all__ = [
    "UnsupportedFeature", "attach", "batch_ledger", "check_transport", "connect", "discovery_bridge", "log_bridge",
    "logs_to_read", "middleware", "part", "publisher_bridge", "record_format", "require_exactly_once", "row_codec",
    "served_log_bridge",
]  # fmt: skip


_NO_LEDGER = "cannot tell which rows are stored already (option exactlyOnce)"


class UnsupportedFeature(ConfigError):
    """The middleware has no such part."""


def middleware(name: str) -> Middleware:
    """The middleware of this name.

    :raises ConfigError: there is none
    """
    if (found := find(name)) is None:
        raise ConfigError(f"no bridge {name!r}; there are {', '.join(MIDDLEWARES)}")
    return found


def part(name: str, which: str, without: str = "") -> Any:
    """A part of a middleware, imported.

    :param which: the field of :class:`~mama_spark.contracts.middlewares.Middleware` that names it
    :param without: text about what a middleware without it cannot do
    :raises ConfigError: there is no such middleware, or what the part needs is not installed
    :raises UnsupportedFeature: it has no such part
    """
    found = middleware(name)
    where: str | None = getattr(found, which)
    if where is None:
        raise UnsupportedFeature(f"the bridge {name!r} {without or f'has no {which}'}")
    try:
        return imported(where)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the bridge {name!r} cannot be loaded ({error}); try: {found.install}") from error


def attach(context: object, loop: AbstractEventLoop | None = None, client: object = None) -> PublisherBridge:
    """A bridge that sends through something live of the user's: a bridge itself, or an object of a client library, as a
    JetStream context of nats-py.

    :param loop: event loop of the context's client; None = that of this thread, which must be the client's
    :param client: client of the context
    :raises ConfigError: it is neither, or the client or its loop is not given
    """
    if isinstance(context, PublisherBridge):
        return context
    library = type(context).__module__.partition(".")[0]
    if library not in {one.client for one in MIDDLEWARES.values()}:
        load_others()
    for one in MIDDLEWARES.values():
        if one.client == library:
            given = (context, loop) if client is None else (context, loop, client)
            bridge: PublisherBridge = part(one.name, "attach", "cannot publish")(*given)
            return bridge
    raise ConfigError(
        f"cannot publish through a {type(context).__name__}: give a bridge, or a JetStream context and its client"
    )


def connect(target: object) -> tuple[PublisherBridge, DiscoveryBridge | None]:
    """A bridge, and the place of discovery that the target names (None: it names none).

    :param target: a URL, options, a bridge, or an object of a client library that :func:`attach` takes by itself
    :raises ConfigError: ``target`` is none of these
    """
    if isinstance(target, str):
        target = SinkOptions.parse({"url": target})
    if not isinstance(target, SinkOptions):
        return attach(target), None
    found = middleware(target.bridge_name)
    return publisher_bridge(target), None if found.discovery_bridge is None else discovery_bridge(target)


def publisher_bridge(o: SinkOptions) -> PublisherBridge:
    """The bridge that publishes with these options.

    :raises ConfigError: the bridge cannot be loaded
    :raises UnsupportedFeature: nothing can be published there
    """
    made = part(o.bridge_name, "publisher_bridge", "cannot publish")
    bridge: PublisherBridge = made(o) if o.log is None else made(o, publisher_bridge(o.at_log()))
    return bridge


def batch_ledger(o: SinkOptions) -> BatchLedger:
    """The ledger that tells which rows of a batch are stored.

    :raises ConfigError: the bridge cannot be loaded
    :raises UnsupportedFeature: it has none
    """
    ledger: BatchLedger = part(o.bridge_name, "batch_ledger", _NO_LEDGER)(o)
    return ledger


def require_exactly_once(o: SinkOptions) -> None:
    """Check the bridge of the options, without importing it.

    :raises UnsupportedFeature: the bridge cannot store each row exactly once
    """
    if middleware(o.bridge_name).batch_ledger is None:
        raise UnsupportedFeature(f"the bridge {o.bridge_name!r} {_NO_LEDGER}")


def row_codec(o: SinkOptions) -> RowCodec | None:
    """The codec that makes messages of rows, where the bridge has its own columns; None: ``topic`` and ``value`` do.

    :raises ConfigError: the bridge cannot be loaded
    """
    which = "row_codec" if o.bucket is None else "key_codec"
    if o.bucket is None and middleware(o.bridge_name).row_codec is None:
        return None
    codec: RowCodec = part(o.bridge_name, which, "has no buckets (option bucket)")(o)
    return codec


def record_format(o: SubscribeOptions) -> RecordFormat | None:
    """The format of records, where the options say that a recorder wrote them."""
    if o.recorded is None:
        return None
    found: RecordFormat = part(o.recorded, "record_format")
    return found


def discovery_bridge(o: TransportOptions) -> DiscoveryBridge:
    """The place of discovery that the options name; where they say that a recorder wrote it, the log of whatever
    middleware that tells of it.

    :raises ConfigError: the bridge cannot be loaded
    :raises UnsupportedFeature: it has none
    """
    if isinstance(o, DiscoveryOptions) and o.recorded is not None:
        servers, stream = split_stream(o.url)
        log = log_bridge(replace(o, url=servers), o.wait_timeout)
        made = part(o.recorded, "recorded_discovery", "has no recorder")(log, o.stream or stream)
    else:
        made = part(o.bridge_name, "discovery_bridge", "has no source discovery")(o)
    bridge: DiscoveryBridge = made
    return bridge


def log_bridge(o: TransportOptions, timeout: float) -> RecordLogBridge:
    """The logs of the middleware that the options name.

    :param timeout: seconds that one question may take
    :raises ConfigError: the bridge cannot be loaded
    :raises UnsupportedFeature: the middleware keeps no logs
    """
    bridge: RecordLogBridge = part(o.bridge_name, "log_bridge", "keeps no log that could be read")(o, timeout)
    return bridge


def served_log_bridge(o: TransportOptions, timeout: float) -> ServedLogBridge:
    """The logs of the middleware that the options name, for a server that serves them to its own clients.

    :raises ConfigError: the bridge cannot be loaded
    :raises UnsupportedFeature: the middleware keeps none that can be served
    """
    bridge: ServedLogBridge = part(o.bridge_name, "served_log_bridge", "keeps no log that a broker could serve")(
        o, timeout
    )
    return bridge


def logs_to_read(o: SubscribeOptions, bridge: RecordLogBridge) -> list[str]:
    """Names of the logs that the options name, or that hold their topics.

    :raises ConfigError: there is none, or the named log never holds one of the topics
    """
    if o.streams:
        return chosen_streams(o.streams, bridge.names(()))
    if o.stream is None:
        return bridge.names(o.topics)
    if o.topics:
        bridge.log(o.stream).require_topics(o.topics)
    return [o.stream]


def check_transport(o: SinkOptions, topics: Sequence[str]) -> list[tuple[bool, str]]:
    """Tries connection, permission and streams without publishing: whether each is fine, and what there is to say.

    :param topics: topics of the messages to come
    :raises UnsupportedFeature: the bridge has no such check
    """
    found: list[tuple[bool, str]] = part(o.bridge_name, "check_transport", "has no check")(o, topics)
    return found
