"""From the options of the sink to a bridge. The only place that knows both."""

from __future__ import annotations

from typing import cast

from ..bridge import PublisherBridge
from ..options import SinkOptions


def make_bridge(o: SinkOptions) -> PublisherBridge:
    """A bridge for one partition, not opened yet."""
    if o.bridge == "memory":
        from ..bridges.memory import MemoryBridge

        return MemoryBridge(o.url[0].split("://", 1)[1], acks=o.ack_mode != "none")
    from ..bridges.nats import NatsBridge, NatsSettings
    from ..bridges.nats.settings import AckMode

    return NatsBridge(
        NatsSettings(
            servers=o.url,
            credentials=o.credentials,
            nkey_seed=o.nkey_seed,
            user=o.user,
            password=o.password,
            token=o.token,
            tls_ca=o.tls_ca,
            tls_cert=o.tls_cert,
            tls_key=o.tls_key,
            stream=o.stream,
            create_stream=o.create_stream,
            ack_mode=cast(AckMode, o.ack_mode),
            dedup=o.dedup,
            ordered=o.order == "partition",
            wait_timeout=o.wait_timeout,
            retry_deadline=o.retry_deadline,
            max_in_flight=o.max_in_flight,
        )
    )
