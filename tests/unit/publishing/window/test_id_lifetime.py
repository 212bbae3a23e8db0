"""All that trusts an id of a message trusts it for the same time."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import Unavailable
from mama_spark.malamute.broker.engines.jetstream.async_publisher import AsyncPublisher, PendingPublish
from mama_spark.nats.jetstream.streams import StreamInfo, _duplicate_window
from mama_spark.nats.publish.stream_router import StreamRouter
from mama_spark.nats.settings import NatsSettings
from mama_spark.publishing.ids.id_lifetime import known_for, window_for


def test_publishers_streams_and_brokers_trust_an_id_for_the_same_time() -> None:
    settings = NatsSettings(retry_deadline=known_for(120.0))
    warnings: list[str] = []
    router = StreamRouter(settings, warnings.append)
    assert _duplicate_window(settings) == window_for(settings.retry_deadline) == 120.0
    for window in (120.0, 119.0):
        router._validate(StreamInfo.of({"config": {"name": "S", "duplicate_window": int(window * 1e9)}}))
        assert len(warnings) == (window < 120.0)
    broker = AsyncPublisher(settings, "engine", "mlp.s", 120.0, 1)
    sent = PendingPublish(1, "w", 0, b"writer", b"a", [b""], first_sent=1.0)
    broker._check_age(sent, 1.0 + settings.retry_deadline)
    with pytest.raises(Unavailable, match=r"surely recognises what was sent before for 60 s only"):
        broker._check_age(sent, 1.1 + settings.retry_deadline)
