"""What is asked again."""

from __future__ import annotations

from mama_spark.nats.jetstream.streams import StreamCache


def test_the_next_bridge_asks_again_for_what_may_be_otherwise_by_then() -> None:
    cache = StreamCache()
    cache.asked |= {"mapped", "by weights", "nobody's"}
    cache.unrouted.add("nobody's")
    cache.led = {"mapped": {"A"}, "by weights": {"A", "B"}}
    cache.reuse()
    assert (cache.asked, cache.led) == ({"mapped"}, {"mapped": {"A"}})
    cache.forget()
    assert (cache.asked, cache.led) == (set(), {})
