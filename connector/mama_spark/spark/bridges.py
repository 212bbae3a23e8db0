"""From options to a bridge."""

from __future__ import annotations

from ..bridge import DiscoveryBridge, PublisherBridge
from ..bridges import discovery_bridge
from ..errors import ConfigError
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
    try:
        return discovery_bridge(o)
    except ConfigError as e:
        raise StatusError(Status.NOT_IMPLEMENTED, str(e)) from e
