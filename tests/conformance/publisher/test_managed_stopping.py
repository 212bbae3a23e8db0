"""The specification's publisher: stop, drain, and cancel, in callbacks and from other threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future

import pytest
from mama_spark.errors import (
    ClientClosed,
    ConfigError,
    NotPublished,
    Stopped,
)
from mama_spark.publisher.api import Flight
from mama_spark.testing.waiting import until

from tests.support.publisher_harness import (
    LONG,
    PublisherHarness,
    RecordingListener,
    ack_of,
)


@pytest.mark.spec("MP-26")
def test_stop_in_a_callback(harness: PublisherHarness) -> None:
    """As "destroy in callback": it ends the publisher, and whoever waits is told."""
    publisher = harness.publisher(max_in_flight=5)

    class Stops(RecordingListener):
        def acked(self, flight: Flight) -> None:
            super().acked(flight)
            publisher.stop()

    listener = publisher.listener = Stops()
    futures = [publisher.publish_async(harness.topic, b"%d" % i) for i in range(500)]
    publisher.start()
    for future in futures:
        error = future.exception(LONG)
        assert error is None or isinstance(error, NotPublished)
        if error is None:
            error = ack_of(future).exception(LONG)
            assert error is None or isinstance(error, Stopped)
    assert listener.heard
    assert publisher.listener_errors == 0
    with pytest.raises(ClientClosed):
        publisher.publish_async(harness.topic, b"")
    for thread in publisher._threads:
        thread.join(LONG)
        assert not thread.is_alive()


def test_drain_in_a_callback_is_refused_instead_of_waiting_for_itself(memory_harness: PublisherHarness) -> None:
    publisher = memory_harness.publisher()
    refused: list[str] = []

    class Drains(RecordingListener):
        def published(self, flight: Flight) -> None:
            with pytest.raises(ConfigError):
                publisher.drain()
            refused.append(flight.id)

    publisher.listener = Drains()
    with publisher:
        publisher.publish_async(memory_harness.topic, b"")
    assert refused == ["p-1"]


@pytest.mark.spec("MP-23-MP-25")
def test_own_threads_may_call_the_runners(harness: PublisherHarness) -> None:
    publisher = harness.publisher()
    threads = [threading.Thread(target=r) for r in (publisher.publish_runner, publisher.flights_runner)]
    for t in threads:
        t.start()
    future = publisher.publish_async(harness.topic, b"x")
    assert ack_of(future).result(LONG)
    publisher.drain(LONG)
    for t in threads:
        t.join(LONG)
        assert not t.is_alive()


@pytest.mark.spec("MP-27", "MP-31", "MP-38")
def test_drain_of_an_idle_publisher_ends(memory_harness: PublisherHarness) -> None:
    """The text tests the marker only when a message was taken, and never ends here."""
    publisher = memory_harness.publisher().start()
    publisher.drain(LONG)
    with pytest.raises(ClientClosed):
        publisher.publish_async(memory_harness.topic, b"")
    assert "drained" in repr(publisher)


@pytest.mark.spec("MP-31")
def test_message_racing_with_drain_is_published_or_refused_never_lost(harness: PublisherHarness) -> None:
    publisher = harness.publisher().start()
    accepted: list[Future[Flight]] = []

    def work() -> None:
        try:
            while True:
                accepted.append(publisher.publish_async(harness.topic, b"x"))
        except ClientClosed:
            return

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    until(lambda: len(accepted) > 50)
    publisher.drain(LONG)
    for t in threads:
        t.join(LONG)
    assert all(ack_of(f).done() for f in accepted)
    assert len(harness.held()) == len(accepted)


@pytest.mark.spec("MP-26", "MP-29", "MP-36")
def test_stop_resolves_everything(harness: PublisherHarness) -> None:
    """The text leaves queue and flights open."""
    topic = harness.lose(5)
    publisher = harness.publisher(max_in_flight=5, wait_timeout=LONG).start()
    futures = [publisher.publish_async(topic, b"") for _ in range(20)]
    until(lambda: publisher.counters.sends == 5)
    publisher.stop()
    publisher.stop()
    assert all(isinstance(ack_of(f).exception(0), Stopped) for f in futures[:5])
    assert all(isinstance(f.exception(0), NotPublished) for f in futures[5:])
    with pytest.raises(ClientClosed):
        publisher.publish_async(topic, b"")


def test_a_cancelled_future_takes_its_message_back(memory_harness: PublisherHarness) -> None:
    publisher = memory_harness.publisher()
    one, two = publisher.publish_async(memory_harness.topic, b"1"), publisher.publish_async(memory_harness.topic, b"2")
    assert one.cancel()
    with publisher:
        assert ack_of(two).result(LONG)
    assert memory_harness.payloads() == [b"2"]
    with pytest.raises(CancelledError):
        one.result(0)


def test_context_managers_drain_and_the_plain_one_is_refused_in_a_coroutine(memory_harness: PublisherHarness) -> None:
    async def run() -> Flight:
        with pytest.raises(ConfigError, match="async with"), memory_harness.publisher():
            pass
        async with memory_harness.publisher() as publisher:
            return await publisher.publish(memory_harness.topic, b"x")

    assert asyncio.run(run()).publish_ack_future.result(0).sequence == 1
