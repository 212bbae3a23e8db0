"""The bridge to NATS JetStream: publishes messages, reads streams as record logs, finds sources.

``protocol`` is pure (the bytes of the NATS protocol), ``connection`` runs nats-py, ``jetstream`` makes requests to the
JetStream API; ``publish``, ``read`` and ``discovery`` implement the three contracts of :mod:`mama_spark.bridge` and
:mod:`mama_spark.record_log`; ``server`` starts a nats-server for ``mama serve``.
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
    layout = DiscoveryLayout(
        o.discovery_topic, o.sources_stream, o.events_stream, o.advisories_stream if wanted else None
    )
    return NatsDiscovery(NatsSettings.from_options(o), layout)


def log_bridge(o: TransportOptions, timeout: float) -> NatsLogs:
    return NatsLogs(NatsSettings.from_options(o), timeout=timeout)
