"""The bridges, found by name and imported only when asked for."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from importlib import import_module
from types import ModuleType

from ..bridge import DiscoveryBridge, PublisherBridge
from ..errors import ConfigError
from ..log import LogBridge
from ..options import SinkOptions, TransportOptions

#: URL scheme -> bridge
SCHEMES = {"nats": "nats", "tls": "nats", "mlp": "malamute", "tango": "tango", "memory": "memory"}
#: bridge -> how to get what it needs
_INSTALL = {
    "nats": "pip install mama-spark",
    "memory": "pip install mama-spark",
    "malamute": "pip install 'mama-spark[malamute]'",
    "tango": "pip install 'mama-spark[tango]'",
}


def scheme_of(url: str) -> str:
    """The bridge that takes this URL (of a comma list, the first one counts).

    :raises ConfigError: if there is no scheme, or no bridge for it
    """
    scheme, sep, _ = url.strip().partition("://")
    if not sep or scheme.lower() not in SCHEMES:
        shown = f"{scheme}://" if sep else "without a scheme"  # the rest may hold a password
        raise ConfigError(f"no bridge takes the url {shown}; schemes are {', '.join(SCHEMES)}")
    return SCHEMES[scheme.lower()]


def load(name: str) -> ModuleType:
    """The module of a bridge.

    :raises ConfigError: if there is no such bridge, or what it needs is not installed
    """
    if name not in _INSTALL:
        raise ConfigError(f"no bridge {name!r}; there are {', '.join(_INSTALL)}")
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(f"the bridge {name!r} cannot be loaded ({error}); try: {_INSTALL[name]}") from error


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
        scheme_of(target)
        target = SinkOptions(url=tuple(url.strip() for url in target.split(",")))
    if not isinstance(target, SinkOptions):
        return attach(target), None
    publishing = publisher_bridge(target)
    try:
        return publishing, discovery_bridge(target)
    except ConfigError:
        return publishing, None


def discovery_bridge(o: TransportOptions) -> DiscoveryBridge:
    """The place of discovery that the options name, not opened yet.

    :raises ConfigError: the bridge has none
    """
    name = o.bridge_name
    load(name)
    if name == "memory":
        room = import_module(f"{__name__}.memory_discovery")
        memory: DiscoveryBridge = room.MemoryDiscovery(o.url[0].split("://", 1)[1])
        return memory
    if name != "nats":
        raise ConfigError(f"the bridge {name!r} has no source discovery")
    advisories = o.advisories_stream if getattr(o, "advisories", True) else None  # an option of those who read
    names = (o.discovery_topic, o.sources_stream, o.events_stream, advisories)
    board = import_module(f"{__name__}.nats.board").Board(*names)
    settings = import_module(f"{__name__}.nats.settings").NatsSettings.from_options(o)
    nats: DiscoveryBridge = import_module(f"{__name__}.nats.discovery").NatsDiscovery(settings, board)
    return nats


def log_bridge(o: TransportOptions, timeout: float) -> LogBridge:
    """The logs of the middleware that the options name, not opened yet.

    :param timeout: seconds that one question may take
    :raises ConfigError: the middleware keeps no logs
    """
    if o.bridge_name not in ("memory", "nats"):
        raise ConfigError(f"the bridge {o.bridge_name!r} keeps no log that could be read")
    if o.bridge_name == "memory":
        memory: LogBridge = import_module(f"{__name__}.memory_logs").MemoryLogs(o.url[0].split("://", 1)[1])
        return memory
    room = load(o.bridge_name).__name__
    settings = import_module(f"{room}.settings").NatsSettings.from_options(o)
    bridge: LogBridge = import_module(f"{room}.logs").NatsLogs(settings, timeout=timeout)
    return bridge


def publisher_bridge(o: SinkOptions) -> PublisherBridge:
    """The bridge that the options name, not opened yet."""
    room = load(o.bridge_name)
    if o.bridge_name == "memory":
        memory: PublisherBridge = room.MemoryBridge(o.url[0].split("://", 1)[1], acks=o.ack_mode != "none")
        return memory
    bridge: PublisherBridge = room.NatsBridge(room.NatsSettings.from_options(o))
    return bridge
