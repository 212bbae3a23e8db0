"""The bridges, found by name and imported only when asked for.

The module of a bridge exports factories of these names, one for each part that its middleware has; what they make is
not opened yet::

    publisher_bridge(o: SinkOptions) -> PublisherBridge     (with option log: (o, what publishes to the log))
    row_codec(o: SinkOptions) -> RowCodec
    batch_ledger(o: SinkOptions) -> BatchLedger
    discovery_bridge(o: TransportOptions) -> DiscoveryBridge
    log_bridge(o: TransportOptions, timeout: float) -> RecordLogBridge
    served_log_bridge(o: TransportOptions, timeout: float) -> ServedLogBridge
    check_transport(o: SinkOptions, topics: list[str]) -> list[tuple[bool, str]]     (tried, and what was found)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .contracts.bridge import DiscoveryBridge, PublisherBridge, RowCodec
from .contracts.errors import ConfigError
from .contracts.middlewares import MIDDLEWARES
from .contracts.record_log import RecordLogBridge
from .contracts.served_log import ServedLogBridge
from .options import DiscoveryOptions, SinkOptions, SubscribeOptions, TransportOptions
from .options.stream_names import chosen_streams
from .options.urls import split_stream

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from .contracts.batch_ledger import BatchLedger

__all__ = [
    "UnsupportedFeature",
    "attach",
    "batch_ledger",
    "check_transport",
    "connect",
    "discovery_bridge",
    "load",
    "log_bridge",
    "logs_to_read",
    "publisher_bridge",
    "require_exactly_once",
    "row_codec",
    "served_log_bridge",
]


class UnsupportedFeature(ConfigError):
    """The middleware has no such part."""


def load(name: str) -> ModuleType:
    """The module of a bridge.

    :raises ConfigError: if there is no such bridge, or what it needs is not installed
    """
    if name not in MIDDLEWARES:
        raise ConfigError(f"no bridge {name!r}; there are {', '.join(MIDDLEWARES)}")
    try:
        return import_module(MIDDLEWARES[name].module)
    except ModuleNotFoundError as error:
        install = MIDDLEWARES[name].install
        raise ConfigError(f"the bridge {name!r} cannot be loaded ({error}); try: {install}") from error


def attach(context: object, loop: AbstractEventLoop | None = None) -> PublisherBridge:
    """A bridge that sends through something live of the user's: a bridge itself, or a live nats-py JetStream context.

    :param loop: where the context's client runs; None = found from the client
    :raises ConfigError: if it is neither
    """
    if all(hasattr(context, name) for name in ("prepare", "send", "poll", "capabilities")):
        return context  # type: ignore[return-value]
    if type(context).__module__.partition(".")[0] == "nats":
        bridge: PublisherBridge = load("nats").NatsBridge.attach(context, loop=loop)
        return bridge
    raise ConfigError(f"cannot publish through a {type(context).__name__}: give a JetStream context or a bridge")


def connect(target: object) -> tuple[PublisherBridge, DiscoveryBridge | None]:
    """What :func:`attach` takes, a URL or options; with the place of discovery that these name, None if they name none.

    :raises ConfigError: if it is none of these
    """
    if isinstance(target, str):
        target = SinkOptions.parse({"url": target})
    if not isinstance(target, SinkOptions):
        return attach(target), None
    publishing = publisher_bridge(target)
    try:
        return publishing, discovery_bridge(target)
    except UnsupportedFeature:
        return publishing, None


def publisher_bridge(o: SinkOptions) -> PublisherBridge:
    """What publishes with these options.

    :raises ConfigError: the bridge cannot be loaded
    :raises UnsupportedFeature: nothing can be published there
    """
    made = _factory(o, "publisher_bridge", "cannot publish")
    bridge: PublisherBridge = made(o) if o.log is None else made(o, publisher_bridge(o.at_log()))
    return bridge


def batch_ledger(o: SinkOptions) -> BatchLedger:
    """What tells which rows of a batch are stored already.

    :raises ConfigError: the bridge cannot be loaded
    :raises UnsupportedFeature: it has none
    """
    ledger: BatchLedger = _factory(o, "batch_ledger", "cannot tell which rows are stored already (option exactlyOnce)")(
        o
    )
    return ledger


def require_exactly_once(o: SinkOptions) -> None:
    """Without opening or importing what publishes.

    :raises UnsupportedFeature: the bridge cannot store each row exactly once
    """
    _factory(o, "batch_ledger", "cannot tell which rows are stored already (option exactlyOnce)")


def row_codec(o: SinkOptions) -> RowCodec | None:
    """What makes messages of rows, where the bridge has columns of its own; None: topic and value do.

    :raises ConfigError: the bridge cannot be loaded
    """
    made: Callable[[SinkOptions], RowCodec] | None = getattr(load(o.bridge_name), "row_codec", None)
    return None if made is None else made(o)


def discovery_bridge(o: TransportOptions) -> DiscoveryBridge:
    """The place of discovery that the options name.

    :raises ConfigError: the bridge cannot be loaded
    :raises UnsupportedFeature: it has none
    """
    if isinstance(o, DiscoveryOptions) and (o.tango or o.omnm):
        return _recorded(o)
    bridge: DiscoveryBridge = _factory(o, "discovery_bridge", "has no source discovery")(o)
    return bridge


def _recorded(o: DiscoveryOptions) -> DiscoveryBridge:
    """The devices or peers that a recorder tells of, in a log of whatever middleware."""
    servers, stream = split_stream(o.url)
    log, name = log_bridge(replace(o, url=servers), o.wait_timeout), o.stream or stream
    module, _, cls = str(MIDDLEWARES["openmama" if o.omnm else "tango"].recorded_discovery).partition(":")
    recorded: DiscoveryBridge = getattr(import_module(module), cls)(log, name)
    return recorded


def log_bridge(o: TransportOptions, timeout: float) -> RecordLogBridge:
    """The logs of the middleware that the options name.

    :param timeout: seconds that one question may take
    :raises ConfigError: the bridge cannot be loaded
    :raises UnsupportedFeature: the middleware keeps no logs
    """
    bridge: RecordLogBridge = _factory(o, "log_bridge", "keeps no log that could be read")(o, timeout)
    return bridge


def served_log_bridge(o: TransportOptions, timeout: float) -> ServedLogBridge:
    """The logs of the middleware that the options name, for a server that serves them to its own clients.

    :raises ConfigError: the bridge cannot be loaded
    :raises UnsupportedFeature: the middleware keeps none that can be served
    """
    bridge: ServedLogBridge = _factory(o, "served_log_bridge", "keeps no log that a broker could serve")(o, timeout)
    return bridge


def logs_to_read(o: SubscribeOptions, bridge: RecordLogBridge) -> list[str]:
    """Names of the logs that the options name, or that hold their topics.

    :raises ConfigError: there is none, or the one that is named holds a topic never
    """
    if o.streams:
        return chosen_streams(o.streams, bridge.names(()))
    if o.stream is None:
        return bridge.names(o.topics)
    if o.topics:
        bridge.log(o.stream).require_topics(o.topics)
    return [o.stream]


def check_transport(o: SinkOptions, topics: list[str]) -> list[tuple[bool, str]]:
    """Tries connection, permission and streams without publishing: whether each is fine, and what there is to say.

    :param topics: of the messages to come
    :raises UnsupportedFeature: the bridge has no such check
    """
    found: list[tuple[bool, str]] = _factory(o, "check_transport", "has no check")(o, topics)
    return found


def _factory(o: TransportOptions, part: str, without: str) -> Callable[..., Any]:
    made: Callable[..., Any] | None = getattr(load(o.bridge_name), part, None)
    if made is None:
        raise UnsupportedFeature(f"the bridge {o.bridge_name!r} {without}")
    return made
