"""The specification's publisher where acknowledgements are late, lost, or too many are awaited."""

from __future__ import annotations

import asyncio
import threading
from time import time

import pytest
from mama_spark.errors import (
    AckTimeout,
    BadTopic,
    QueueFull,
)
from mama_spark.publisher.api import Flight, RetryConfig
from mama_spark.testing.waiting import until

from tests.support.publisher_harness import (
    LONG,
    PublisherHarness,
    ack_of,
    patient,
)

RETRY = RetryConfig.doubling(0.01, 0.05, deadline=LONG)


def test_async_publish_backpressure(harness: PublisherHarness) -> None:
    """Limit 10: whoever waits has all 2,000 stored; the window is never exceeded."""
    n = 2_000
    with harness.publisher(max_in_flight=10, queue_size=200, retry_config=RETRY, listener=None) as publisher:
        for i in range(n):
            publisher.publish_async(harness.topic, b"%d" % i)
            assert publisher.window.in_flight <= 10
    assert publisher.counters.acked == n
    assert harness.payloads() == [b"%d" % i for i in range(n)]


def test_async_publish_max_ack_pending(memory_harness: PublisherHarness) -> None:
    """Limit 10, error mode: what does not fit is refused with an error and nothing of it is sent."""
    topic = memory_harness.lose(10)
    publisher = memory_harness.publisher(max_in_flight=10, queue_size=10, wait_timeout=LONG).start()

    async def publish() -> int:
        refused = 0
        for i in range(100):
            try:
                publisher.publish_async(topic, b"%d" % i)
            except QueueFull:
                refused += 1
            await asyncio.sleep(0)
        return refused

    assert asyncio.run(publish()) >= 100 - 10 - 10 - 10, "in flight, at the runner, queued"
    until(lambda: publisher.counters.sends == 10)
    assert publisher.window.holding


def test_multithreaded_publish_async(harness: PublisherHarness) -> None:
    with harness.publisher(max_in_flight=100) as publisher:

        def work(k: int) -> None:
            for i in range(200):
                publisher.publish_async(harness.topic, b"%d" % (k * 200 + i))

        threads = [threading.Thread(target=work, args=(k,)) for k in range(5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(LONG)
    assert sorted(map(int, harness.payloads())) == list(range(1000))


@pytest.mark.spec("MP-09", "MP-14", "MP-41")
def test_publish_async_ack_timeout(harness: PublisherHarness) -> None:
    """A lost acknowledgement times out, whoever waits for it is told, and its place is free."""
    topic = harness.lose(1)
    with harness.publisher(max_in_flight=1, wait_timeout=0.1) as publisher:
        flight = publisher.publish_async(topic, b"").result(LONG)
        assert isinstance(flight.publish_ack_future.exception(LONG), AckTimeout)
        assert publisher.window.in_flight == 0
        patient(publisher)
        assert ack_of(publisher.publish_async(harness.topic, b"")).result(LONG)
    assert harness.listener.events("p-1") == ["published", "timeout"]


@pytest.mark.spec("MP-41")
def test_n_lost_acks_cost_one_time_out(harness: PublisherHarness) -> None:
    topic = harness.lose(50)
    publisher = harness.publisher(wait_timeout=0.3).start()
    futures = [publisher.publish_async(topic, b"") for _ in range(50)]
    publisher.drain(LONG)
    assert all(isinstance(ack_of(f).exception(0), AckTimeout) for f in futures)
    began = [f.result().publish_time or 0 for f in futures]
    assert time() - min(began) < 10, "fifty timeouts in a row would take 15 s"


@pytest.mark.spec("MP-10-MP-14")
def test_publish_async_ack_handler(memory_harness: PublisherHarness) -> None:
    """The listener hears of each flight once per event, in order, and the future says the same."""
    quiet = memory_harness.lose(1)
    publisher = memory_harness.publisher(wait_timeout=0.1).start()
    lost = publisher.publish_async(quiet, b"")
    assert isinstance(ack_of(lost).exception(LONG), AckTimeout)
    patient(publisher)
    good = publisher.publish_async(memory_harness.topic, b"")
    bad = publisher.publish_async("t.*", b"")
    publisher.drain(LONG)
    assert ack_of(good).result(0)
    assert isinstance(bad.exception(0), BadTopic)
    assert memory_harness.listener.events("p-1") == ["published", "timeout"], "acked is skipped on a time-out"
    assert memory_harness.listener.events("p-2") == ["published", "acked"]
    assert memory_harness.listener.events("p-3") == ["completed_exceptionally"]
    assert len(memory_harness.listener.heard) == 5


@pytest.mark.spec("MP-08", "MP-35", "MP-43")
def test_hold_is_ended_by_settlements_not_by_the_pause(memory_harness: PublisherHarness) -> None:
    """With a pause of a minute, the text's loop would take hours."""
    with memory_harness.publisher(max_in_flight=2, hold_pause_time=LONG) as publisher:
        futures = [publisher.publish_async(memory_harness.topic, b"") for _ in range(100)]
    assert all(f.done() for f in futures)


@pytest.mark.spec("MP-28")
def test_a_full_queue_blocks_threads_and_raises_on_an_event_loop(memory_harness: PublisherHarness) -> None:
    """MP-28 and the unbounded queue of the text."""
    publisher = memory_harness.publisher(queue_size=2)

    async def fill() -> list[Flight]:
        publisher.publish_async(memory_harness.topic, b"")
        publisher.publish_async(memory_harness.topic, b"")
        with pytest.raises(QueueFull):
            publisher.publish_async(memory_harness.topic, b"")
        waits = [asyncio.ensure_future(publisher.publish(memory_harness.topic, b"%d" % i)) for i in range(10)]
        await asyncio.sleep(0)
        publisher.start()
        return await asyncio.gather(*waits)

    flights = asyncio.run(fill())
    publisher.drain(LONG)
    assert len(flights) == 10
    assert publisher.counters.acked == 12
