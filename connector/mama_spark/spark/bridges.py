"""From the options of the sink to a bridge."""

from __future__ import annotations

from ..bridge import PublisherBridge
from ..options import SinkOptions


def make_bridge(o: SinkOptions) -> PublisherBridge:
    """A bridge for one partition, not opened yet."""
    if o.bridge_name == "memory":
        from ..bridges.memory import MemoryBridge

        return MemoryBridge(o.url[0].split("://", 1)[1], acks=o.ack_mode != "none")
    from ..bridges.nats import NatsBridge, NatsSettings

    return NatsBridge(NatsSettings.from_options(o))
