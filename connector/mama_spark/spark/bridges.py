"""From options to a bridge."""

from __future__ import annotations

from ..bridge import DiscoveryBridge, PublisherBridge
from ..mama.status import Status, StatusError
from ..options import SinkOptions, TransportOptions


def make_bridge(o: SinkOptions) -> PublisherBridge:
    """A bridge for one partition, not opened yet."""
    if o.bridge_name == "memory":
        from ..bridges.memory import MemoryBridge

        return MemoryBridge(o.url[0].split("://", 1)[1], acks=o.ack_mode != "none")
    from ..bridges.nats import NatsBridge, NatsSettings

    return NatsBridge(NatsSettings.from_options(o))


def make_discovery(o: TransportOptions) -> DiscoveryBridge:
    """Where sources announce themselves on this transport, not opened yet.

    :raises StatusError: NOT_IMPLEMENTED: the bridge has no source discovery (SD-18)
    """
    if o.bridge_name == "memory":
        from ..bridges.memory_discovery import MemoryDiscovery

        return MemoryDiscovery(o.url[0].split("://", 1)[1])
    if o.bridge_name == "nats":
        from ..bridges.nats import NatsSettings
        from ..bridges.nats.board import Board
        from ..bridges.nats.discovery import NatsDiscovery

        board = Board(o.discovery_topic, o.sources_stream, o.events_stream, o.advisories_stream)
        return NatsDiscovery(NatsSettings.from_options(o), board)
    raise StatusError(Status.NOT_IMPLEMENTED, f"the {o.bridge_name} bridge has no source discovery")
