"""The specification's publisher over both kinds of target."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future
from itertools import pairwise
from time import time

import pytest
from mama_spark.contracts.errors import (
    AckTimeout,
    BadRow,
    BadTopic,
    ClientClosed,
    ConfigError,
    NotPublished,
    QueueFull,
    Stopped,
    TooLarge,
)
from mama_spark.contracts.message import MessageBatch
from mama_spark.memory.bridge import MemoryBridge
from mama_spark.publishing.api import Flight, PublishOptions, RetryConfig
from mama_spark.publishing.managed.managed_publisher import ManagedPublisher
from mama_spark.testing.waiting import until

from tests.support.publisher_harness import LONG, PublisherHarness, RecordingListener, ack_of, patient

# --- the specification's publisher: its defaults, and what its listener is told ---------------------------------------


def test_listener_that_raises_is_counted_and_changes_nothing(memory_harness: PublisherHarness) -> None:
    class Broken(RecordingListener):
        def acked(self, flight: Flight) -> None:
            raise RuntimeError("no")

    with memory_harness.publisher(listener=Broken()) as publisher:
        futures = [publisher.publish_async(memory_harness.topic, b"") for _ in range(3)]
    assert publisher.listener_errors == 3
    assert all(ack_of(f).result(0) for f in futures)


@pytest.mark.spec("MP-03-MP-09")
def test_defaults_are_those_of_the_specification(harness: PublisherHarness) -> None:
    one, other = (ManagedPublisher(harness.target(), **harness.given()) for _ in range(2))
    policy = one.window.policy
    assert (policy.max_in_flight, policy.refill_allowed_at, policy.wait_timeout, policy.retry) == (50, 0, 5.0, None)
    assert (one.poll_time, one.hold_pause_time) == (0.1, 0.1)
    assert one.id_prefix != other.id_prefix


@pytest.mark.spec("MP-33")
def test_flights_are_told_in_the_order_of_their_events(memory_harness: PublisherHarness) -> None:
    """Published comes before what settles the flight, and messages go in the order in which they came."""
    with memory_harness.publisher(max_in_flight=7) as publisher:
        for _ in range(60):
            publisher.publish_async(memory_harness.topic, b"")
    published = [int(id_.split("-")[1]) for event, id_ in memory_harness.listener.heard if event == "published"]
    assert all(a < b for a, b in pairwise(published))
    assert all(memory_harness.listener.events(f"p-{i}") == ["published", "acked"] for i in range(1, 61))


# --- the specification's publisher over both kinds of target: what is published, and what is refused ------------------


@pytest.mark.spec("MP-01", "MP-02", "MP-11", "MP-12", "MP-15-MP-22", "MP-28", "MP-33", "MP-39", "MP-25")
def test_publish_msg_async(harness: PublisherHarness) -> None:
    """A flight tells all of itself."""
    publisher = harness.publisher().start()
    options = PublishOptions(expected_stream=harness.stream)
    before = time()
    flight = publisher.publish_async("t.b", b"body", {"k": "v", "r": ["1", "2"]}, options).result(LONG)
    ack = flight.publish_ack_future.result(LONG)
    assert (flight.id, flight.subject, flight.body) == ("p-1", "t.b", b"body")
    assert flight.headers == {"k": ["v"], "r": ["1", "2"]}
    assert flight.options is options
    assert flight.publish_time is not None
    assert before - 1 < flight.publish_time < time() + 1
    assert (ack.stream, ack.sequence, ack.duplicate) == (harness.stream, 1, False)
    publisher.drain(LONG)
    assert harness.listener.events("p-1") == ["published", "acked"]
    (stored,) = harness.held()
    assert (stored.topic, stored.payload, stored.headers["k"]) == ("t.b", b"body", ["v"])
    assert stored.headers["r"] == ["1", "2"]
    assert stored.headers["Nats-Expected-Stream"] == [harness.stream]


@pytest.mark.spec("MP-03", "MP-18")
def test_the_id_is_sent_for_deduplication(harness: PublisherHarness) -> None:
    """Two publishers of one prefix give the same ids, and the middleware stores them once."""
    for _ in range(2):
        with harness.publisher(id_prefix="same") as publisher:
            futures = [publisher.publish_async(harness.topic, b"%d" % i) for i in range(3)]
        assert [f.result(0).id for f in futures] == ["same-1", "same-2", "same-3"]
    assert [ack_of(f).result(0).duplicate for f in futures] == [True] * 3
    assert harness.payloads() == [b"0", b"1", b"2"]


def test_publish_msg_async_with_msg_id_is_a_duplicate_the_second_time(harness: PublisherHarness) -> None:
    with harness.publisher() as publisher:
        futures = [publisher.publish_async("t.a", b"x", options=PublishOptions(msg_id="mine")) for _ in range(2)]
        acks = [ack_of(f).result(LONG) for f in futures]
    assert [a.duplicate for a in acks] == [False, True]
    assert acks[0].sequence == acks[1].sequence


@pytest.mark.parametrize(
    ("subject", "body", "headers", "error"),
    [("t.*", b"", None, BadTopic), ("", b"", None, BadTopic), ("t..x", b"", None, BadTopic),
     ("t.x", bytes((1 << 20) + 1), None, TooLarge), ("t.x", bytes((1 << 20) - 5), {"h": "x" * 10}, TooLarge),
     ("t.x", b"", {"h": "x\r\ny"}, BadRow)],
)  # fmt: skip
def test_bad_messages_fail_unsent_and_the_connection_lives(
    harness: PublisherHarness, subject: str, body: bytes, headers: dict[str, str] | None, error: type[Exception]
) -> None:
    """As testMaxPayloadJs and TestPublishMsgAsync, "bad subject"; header and payload count together."""
    with harness.publisher() as publisher:
        with pytest.raises(error):
            publisher.publish_async(subject, body, headers).result(LONG)
        assert ack_of(publisher.publish_async(harness.topic, b"ok")).result(LONG).sequence == 1
    assert harness.payloads() == [b"ok"]


# --- the specification's publisher where acknowledgements are late, lost, or too many are awaited ---------------------

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


def test_what_a_bridge_took_before_it_raised_may_be_stored(
    memory_harness: PublisherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = MemoryBridge.send

    def raises(bridge: MemoryBridge, batch: MessageBatch, first_token: int) -> int:
        send(bridge, batch.slice(0, 1), first_token)
        raise RuntimeError("no more")

    publisher = memory_harness.publisher().start()
    monkeypatch.setattr(MemoryBridge, "send", raises)
    failed = publisher.publish_async(memory_harness.topic, b"")
    error = failed.exception(LONG)
    assert isinstance(error, Stopped)
    assert (error.may_have_landed, error.info) == (True, "RuntimeError: no more")
    monkeypatch.undo()
    later = ack_of(publisher.publish_async(memory_harness.topic, b"")).result(LONG)  # it goes on
    assert later.sequence == 2, "the answer to the first send is none to the second"
    publisher.drain(LONG)


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


# --- the specification's publisher: stop, drain, and cancel, in callbacks and from other threads ----------------------


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
