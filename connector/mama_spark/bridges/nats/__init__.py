"""NATS JetStream: ``NatsBridge(NatsSettings(...))``; ``mama serve`` and ``mama check`` stand on this room too.

``frames``, ``headers``, ``subjects``, ``wire``, ``acks``, ``fast``, ``errors`` decide without I/O; ``loop``, ``link``,
``tap``, ``pool``, ``streams``, ``batching``, ``mailbox`` act; ``bridge`` puts them behind the contract.

Reading: ``records`` and ``retention`` decide; ``api`` asks, ``feed`` is what one consumer delivers, ``reading`` goes
from consumer to consumer, ``stream_log`` and ``logs`` put that behind the contract of logs.
"""

from mama_spark.options import DiscoveryOptions, SinkOptions, TransportOptions

from .discovery.bridge import NatsDiscovery
from .discovery.layout import DiscoveryLayout
from .publish.bridge import NatsBridge
from .read.logs import NatsLogs
from .settings import NatsSettings

__all__ = ["NatsBridge", "NatsSettings", "discovery_bridge", "log_bridge", "publisher_bridge"]


def publisher_bridge(o: SinkOptions) -> NatsBridge:
    return NatsBridge(NatsSettings.from_options(o))


def discovery_bridge(o: TransportOptions) -> NatsDiscovery:
    wanted = not isinstance(o, DiscoveryOptions) or o.advisories  # only readers can do without
    board = DiscoveryLayout(
        o.discovery_topic, o.sources_stream, o.events_stream, o.advisories_stream if wanted else None
    )
    return NatsDiscovery(NatsSettings.from_options(o), board)


def log_bridge(o: TransportOptions, timeout: float) -> NatsLogs:
    return NatsLogs(NatsSettings.from_options(o), timeout=timeout)
