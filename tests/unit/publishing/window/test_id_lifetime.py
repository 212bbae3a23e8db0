"""All that trusts an id of a message trusts it for the same time."""

from __future__ import annotations

from mama_spark.nats.jetstream.answers import StreamInfo
from mama_spark.nats.jetstream.streams import duplicate_window
from mama_spark.nats.publish.stream_router import StreamRouter
from mama_spark.nats.settings import NatsSettings
from mama_spark.publishing.ids.id_lifetime import known_for, window_for


def test_publishers_and_streams_trust_an_id_for_the_same_time() -> None:
    assert known_for(120.0) == 60.0, "half is left for what is on its way"
    settings = NatsSettings(retry_deadline=known_for(120.0))
    warnings: list[str] = []
    router = StreamRouter(settings, warnings.append)
    assert duplicate_window(settings) == window_for(settings.retry_deadline) == 120.0
    for window in (120.0, 119.0):
        router._validate(StreamInfo.of({"config": {"name": "S", "duplicate_window": int(window * 1e9)}}))
        assert len(warnings) == (window < 120.0)
