"""How long a stream must know ids, and what the next bridge asks again."""

from __future__ import annotations

import pytest
from mama_spark.nats.jetstream.answers import StreamInfo
from mama_spark.nats.jetstream.streams import StreamCache, duplicate_window
from mama_spark.nats.publish.stream_router import StreamRouter
from mama_spark.nats.settings import NatsSettings


def test_ids_are_known_twice_as_long_as_messages_are_sent_again() -> None:
    """Half is left for what is on its way."""
    settings = NatsSettings(retry_deadline=60.0)
    warnings: list[str] = []
    router = StreamRouter(settings, warnings.append)
    assert duplicate_window(settings) == 120.0
    assert duplicate_window(NatsSettings(exactly_once=True, wait_timeout=1.0)) == 2.0
    for window in (120.0, 119.0):
        router._validate(StreamInfo.of({"config": {"name": "S", "duplicate_window": int(window * 1e9)}}))
        assert len(warnings) == (window < 120.0)


@pytest.mark.parametrize(
    ("window", "replicas", "warned"),
    [
        (19.0, 3, "for 19 s only, and a leader that is cut off takes messages for up to 20 s"),
        (20.0, 3, None),
        (9.0, 1, "for 9 s only: a process that is suspended for 5 s longer than that"),
        (10.0, 1, None),
    ],
)
def test_exactly_once_warns_where_ids_may_be_forgotten_too_soon(
    window: float, replicas: int, warned: str | None
) -> None:
    """By a leader that is cut off, or while the process is suspended between the look at its marker and the send."""
    warnings: list[str] = []
    config = {"name": "S", "duplicate_window": int(window * 1e9), "num_replicas": replicas}
    settings = NatsSettings(exactly_once=True, wait_timeout=5.0)
    StreamRouter(settings, warnings.append)._validate(StreamInfo.of({"config": config}))
    assert [warned is not None and warned in text for text in warnings] == [True] * (warned is not None)


def test_the_next_bridge_asks_again_for_what_may_be_otherwise_by_then() -> None:
    cache = StreamCache()
    cache.asked |= {"mapped", "by weights", "nobody's"}
    cache.unrouted.add("nobody's")
    cache.led = {"mapped": {"A"}, "by weights": {"A", "B"}}
    cache.reuse()
    assert (cache.asked, cache.led) == ({"mapped"}, {"mapped": {"A"}})
    cache.forget()
    assert (cache.asked, cache.led) == (set(), {})
