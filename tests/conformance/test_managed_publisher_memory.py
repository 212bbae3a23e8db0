"""The specification's publisher: other clients' tests by name, and a test for each fault of the specification."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any
from uuid import uuid4

import pytest
from mama_spark.bridges.memory import MemoryBridge, MemoryBroker
from mama_spark.errors import (
    AckTimeout,
    BadTopic,
    ClientClosed,
    ConfigError,
    LoopDied,
    NotPublished,
    PublishError,
    QueueFull,
    Refused,
    Stopped,
    TooLarge,
)
from mama_spark.message import MessageBatch
from mama_spark.publisher.api import Flight, PublishOptions, RetryConfig
from mama_spark.publisher.managed import ManagedPublisher

LONG = 60.0
RETRY = RetryConfig.doubling(0.01, 0.05, deadline=LONG)


class Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def published(self, flight: Flight) -> None:
        self.heard.append(("published", flight.id))

    def acked(self, flight: Flight) -> None:
        self.heard.append(("acked", flight.id))

    def completed_exceptionally(self, flight: Flight) -> None:
        self.heard.append(("completed_exceptionally", flight.id))

    def timeout(self, flight: Flight) -> None:
        self.heard.append(("timeout", flight.id))

    def events(self, id_: str) -> list[str]:
        return [event for event, flight in self.heard if flight == id_]


class Desk:
    def __init__(self) -> None:
        self.name = uuid4().hex
        self.broker = MemoryBroker.get(self.name)
        self.ear = Ear()
        self.made: list[ManagedPublisher] = []

    def publisher(self, *, bridge: MemoryBridge | None = None, **options: object) -> ManagedPublisher:
        target = bridge or MemoryBridge(self.name)
        options = {"id_prefix": "p", "listener": self.ear, **options}
        publisher = ManagedPublisher(target, **options)  # type: ignore[arg-type]
        self.made.append(publisher)
        return publisher


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    for publisher in desk.made:
        publisher.stop()
    MemoryBroker.forget(desk.name)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def ack_of(future: Future[Flight]) -> Future[object]:
    return future.result(LONG).publish_ack_future  # type: ignore[return-value]


def test_publish_msg_async(desk: Desk) -> None:
    """MP-02, MP-11, MP-12, MP-15 to MP-22, MP-28: a flight tells all of itself."""
    publisher = desk.publisher().start()
    options = PublishOptions(expected_stream="S")
    before = time.time()
    flight = publisher.publish_async("a.b", b"body", {"k": "v"}, options).result(LONG)
    ack = flight.publish_ack_future.result(LONG)
    assert (flight.id, flight.subject, flight.body, flight.headers) == ("p-1", "a.b", b"body", {"k": ["v"]})
    assert flight.options is options
    assert flight.publish_time is not None
    assert before - 1 < flight.publish_time < time.time() + 1
    assert (ack.stream, ack.sequence, ack.duplicate) == (desk.name, 1, False)
    publisher.drain()
    assert desk.ear.events("p-1") == ["published", "acked"]
    (stored,) = desk.broker.messages()
    assert stored.headers == {"k": ["v"], "Nats-Expected-Stream": ["S"]}
    assert stored.id == "p-1", "the id is sent (MP-18)"


def test_publish_msg_async_with_msg_id_is_a_duplicate_the_second_time(desk: Desk) -> None:
    with desk.publisher() as publisher:
        futures = [publisher.publish_async("a", b"x", options=PublishOptions(msg_id="mine")) for _ in range(2)]
        acks = [f.result(LONG).publish_ack_future.result(LONG) for f in futures]
    assert [a.duplicate for a in acks] == [False, True]
    assert acks[0].sequence == acks[1].sequence


def test_publish_msg_async_with_pending_msgs(desk: Desk) -> None:
    """MP-04, MP-34: never more in flight than allowed."""
    desk.broker.then(["late"] * 12)
    publisher = desk.publisher(max_in_flight=5, wait_timeout=LONG).start()
    futures = [publisher.publish_async("a", b"%d" % i) for i in range(12)]
    until(lambda: publisher.counters.sends == 5)
    assert publisher.window.holding
    assert not futures[5].done()
    while not futures[-1].done():
        assert publisher.window.in_flight <= 5
        desk.broker.release()
        time.sleep(0.001)
    desk.broker.release()
    publisher.drain(LONG)
    assert publisher.counters.acked == 12


def test_async_publish_backpressure(desk: Desk) -> None:
    """A small queue and window store everything, in order, however many are published."""
    with desk.publisher(max_in_flight=10, queue_size=10) as publisher:
        for i in range(3000):
            publisher.publish_async("a", b"%d" % i)
    assert [int(m.payload) for m in desk.broker.messages()] == list(range(3000))


def test_publish_async_reset_pending_on_reconnect(desk: Desk) -> None:
    desk.broker.then([*["drop"] * 99, "disconnect"])
    with desk.publisher(max_in_flight=100, retry_config=RETRY) as publisher:
        futures = [publisher.publish_async("a", b"%d" % i) for i in range(100)]
    assert all(ack_of(f).result(LONG) for f in futures)
    assert len(desk.broker.messages()) == 100


def test_publish_async_retry(desk: Desk) -> None:
    """MP-06: nobody there at first; sent again until somebody is."""
    desk.broker.then(["503"] * 3)
    with desk.publisher(max_in_flight=1, retry_config=RETRY) as publisher:
        flight = publisher.publish_async("a", b"").result(LONG)
        flight.publish_ack_future.result(LONG)
    assert flight.sends == 4
    assert desk.ear.events("p-1") == ["published", "acked"], "published once, however often it was sent"


def test_publish_async_retry_fails_after_its_attempts(desk: Desk) -> None:
    desk.broker.then(["503"] * 9)
    with desk.publisher(retry_config=RetryConfig(2, (0.01,))) as publisher:
        flight = publisher.publish_async("a", b"").result(LONG)
        error = flight.publish_ack_future.exception(LONG)
    assert isinstance(error, PublishError)
    assert (error.code, flight.sends) == (503, 3)


def test_publish_async_retry_disabled_fails_at_once(desk: Desk) -> None:
    """MP-06, MP-13, MP-40."""
    desk.broker.then(["503"])
    with desk.publisher() as publisher:
        flight = publisher.publish_async("a", b"").result(LONG)
        assert isinstance(flight.publish_ack_future.exception(LONG), PublishError)
    assert desk.ear.events("p-1") == ["published", "completed_exceptionally"]


def test_publish_async_retry_in_err_handler(desk: Desk) -> None:
    """A listener may publish again; all ten are stored."""
    desk.broker.then(["reject"] * 10)
    publisher = desk.publisher()

    class Again(Ear):
        def completed_exceptionally(self, flight: Flight) -> None:
            publisher.publish_async(flight.subject, flight.body)

    publisher.listener = Again()
    publisher.start()
    for i in range(10):
        publisher.publish_async("a", b"%d" % i)
    until(lambda: publisher.counters.acked == 10)
    publisher.drain(LONG)
    assert sorted(int(m.payload) for m in desk.broker.messages()) == list(range(10))


def test_publish_async_ack_timeout(desk: Desk) -> None:
    """MP-09, MP-14, MP-41: a lost acknowledgement times out, and whoever waits for it is told."""
    desk.broker.then(["lose"])
    with desk.publisher(wait_timeout=0.05) as publisher:
        flight = publisher.publish_async("a", b"").result(LONG)
        assert isinstance(flight.publish_ack_future.exception(LONG), AckTimeout)
        assert publisher.publish_async("a", b"").result(LONG).publish_ack_future.result(LONG)
    assert desk.ear.events("p-1") == ["published", "timeout"]


def test_n_lost_acks_cost_one_time_out(desk: Desk) -> None:
    desk.broker.then(["lose"] * 50)
    publisher = desk.publisher(wait_timeout=0.5).start()
    futures = [publisher.publish_async("a", b"") for _ in range(50)]
    publisher.drain(LONG)
    assert all(isinstance(ack_of(f).exception(0), AckTimeout) for f in futures)
    began = [f.result().publish_time or 0 for f in futures]
    assert publisher.counters.timed_out == 50
    assert time.time() - min(began) < 0.5 * 25, "fifty timeouts in a row would take 25 s"


def test_multithreaded_publish_async(desk: Desk) -> None:
    with desk.publisher(max_in_flight=100) as publisher:

        def work() -> None:
            for _ in range(200):
                publisher.publish_async("a", b"x")

        threads = [threading.Thread(target=work) for _ in range(5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(LONG)
    assert len({m.id for m in desk.broker.messages()}) == 1000


def test_own_threads_may_call_the_runners(desk: Desk) -> None:
    """MP-23, MP-24, MP-25."""
    publisher = desk.publisher()
    threads = [threading.Thread(target=r) for r in (publisher.publish_runner, publisher.flights_runner)]
    for t in threads:
        t.start()
    future = publisher.publish_async("a", b"x")
    assert ack_of(future).result(LONG)
    publisher.drain(LONG)
    for t in threads:
        t.join(LONG)
        assert not t.is_alive()


def test_drain_of_an_idle_publisher_ends(desk: Desk) -> None:
    """MP-27, MP-38: the text tests the marker only when a message was taken, and never ends here."""
    publisher = desk.publisher().start()
    publisher.drain(LONG)
    with pytest.raises(ClientClosed):
        publisher.publish_async("a", b"")
    assert "drained" in repr(publisher)


def test_message_racing_with_drain_is_published_or_refused_never_lost(desk: Desk) -> None:
    publisher = desk.publisher().start()
    accepted: list[Future[Flight]] = []

    def work() -> None:
        try:
            while True:
                accepted.append(publisher.publish_async("a", b"x"))
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
    assert len(desk.broker.messages()) == len(accepted)


def test_stop_resolves_everything(desk: Desk) -> None:
    """MP-26: the text leaves queue and flights open."""
    desk.broker.then(["lose"] * 5)
    publisher = desk.publisher(max_in_flight=5, wait_timeout=LONG).start()
    futures = [publisher.publish_async("a", b"") for _ in range(20)]
    until(lambda: publisher.counters.sends == 5)
    publisher.stop()
    publisher.stop()
    assert all(isinstance(ack_of(f).exception(0), Stopped) for f in futures[:5])
    assert all(isinstance(f.exception(0), NotPublished) for f in futures[5:])
    with pytest.raises(ClientClosed):
        publisher.publish_async("a", b"")


def test_hold_is_ended_by_settlements_not_by_the_pause(desk: Desk) -> None:
    """MP-08, MP-35, MP-43: with a pause of a minute, the text's loop would take hours."""
    with desk.publisher(max_in_flight=2, hold_pause_time=LONG) as publisher:
        futures = [publisher.publish_async("a", b"") for _ in range(100)]
    assert all(f.done() for f in futures)


def test_publish_raising_inside_the_runner_fails_that_flight_and_the_runner_goes_on(desk: Desk) -> None:
    class Raises(MemoryBridge):
        def send(self, batch: MessageBatch, first_token: int) -> int:
            if b"bad" in batch.payloads.to_pylist():
                raise OSError("broken pipe")
            return super().send(batch, first_token)

    with desk.publisher(bridge=Raises(desk.name)) as publisher:
        bad = publisher.publish_async("a", b"bad")
        with pytest.raises(PublishError, match="broken pipe"):
            bad.result(LONG)
        assert ack_of(publisher.publish_async("a", b"good")).result(LONG)
    assert desk.ear.events("p-1") == ["completed_exceptionally"]


def test_a_cancelled_future_takes_its_message_back(desk: Desk) -> None:
    publisher = desk.publisher()
    one, two = publisher.publish_async("a", b"1"), publisher.publish_async("a", b"2")
    assert one.cancel()
    with publisher:
        assert ack_of(two).result(LONG)
    assert [m.payload for m in desk.broker.messages()] == [b"2"]
    with pytest.raises(CancelledError):
        one.result(0)


def test_listener_that_raises_is_counted_and_changes_nothing(desk: Desk) -> None:
    class Broken(Ear):
        def acked(self, flight: Flight) -> None:
            raise RuntimeError("no")

    with desk.publisher(listener=Broken()) as publisher:
        futures = [publisher.publish_async("a", b"") for _ in range(3)]
    assert publisher.listener_errors == 3
    assert all(ack_of(f).result(0) for f in futures)


@pytest.mark.parametrize(
    ("subject", "body", "headers", "error"),
    [("a.*", b"", None, BadTopic), ("", b"", None, BadTopic), ("a", bytes(200), None, TooLarge),
     ("a", bytes(95), {"h": "x" * 10}, TooLarge), ("a", b"", {"h": "x\r\ny"}, Refused)],
)  # fmt: skip
def test_bad_messages_fail_unsent(
    desk: Desk, subject: str, body: bytes, headers: dict[str, str] | None, error: type[Exception]
) -> None:
    with desk.publisher(bridge=MemoryBridge(desk.name, max_payload=100)) as publisher:
        with pytest.raises(error):
            publisher.publish_async(subject, body, headers).result(LONG)
        assert ack_of(publisher.publish_async("a", b"ok")).result(LONG)
    assert len(desk.broker.messages()) == 1


@pytest.mark.parametrize("fault", ["503", "429", "409", "late", "lose", "drop", "unknown", "dup"])
def test_a_fault_in_mid_stream_loses_nothing_with_retries(desk: Desk, fault: str) -> None:
    desk.broker.then([*["ack"] * 20, *[fault] * 5])
    with desk.publisher(max_in_flight=10, retry_config=RETRY, wait_timeout=0.2) as publisher:
        futures = [publisher.publish_async("a", b"%d" % i) for i in range(100)]
        for future in futures:
            ack_of(future).result(LONG)
        desk.broker.release()
    assert sorted(int(m.payload) for m in desk.broker.messages()) == list(range(100))


def test_a_late_ack_is_counted_and_changes_nothing(desk: Desk) -> None:
    desk.broker.then(["late"])
    publisher = desk.publisher(wait_timeout=0.05).start()
    future = publisher.publish_async("a", b"")
    assert isinstance(ack_of(future).exception(LONG), AckTimeout)
    desk.broker.release()
    until(lambda: publisher.counters.late + publisher.counters.unknown == 1)
    publisher.drain(LONG)
    assert desk.ear.events("p-1") == ["published", "timeout"]


def test_a_closed_connection_tells_every_waiter(desk: Desk) -> None:
    desk.broker.then(["lose", "kill"])
    publisher = desk.publisher(max_in_flight=2).start()
    futures = [publisher.publish_async("a", b"") for _ in range(5)]
    with pytest.raises(LoopDied):
        publisher.drain(LONG)
    assert all(f.exception(LONG) or ack_of(f).exception(LONG) for f in futures)


def test_a_full_queue_blocks_threads_and_raises_on_an_event_loop(desk: Desk) -> None:
    """MP-28 and the unbounded queue of the text."""
    publisher = desk.publisher(queue_size=2)

    async def fill() -> list[Flight]:
        publisher.publish_async("a", b"")
        publisher.publish_async("a", b"")
        with pytest.raises(QueueFull):
            publisher.publish_async("a", b"")
        waits = [asyncio.ensure_future(publisher.publish("a", b"%d" % i)) for i in range(10)]
        await asyncio.sleep(0)
        publisher.start()
        return await asyncio.gather(*waits)

    flights = asyncio.run(fill())
    publisher.drain(LONG)
    assert len(flights) == 10
    assert publisher.counters.acked == 12


def test_async_context_manager_drains(desk: Desk) -> None:
    async def run() -> Flight:
        async with desk.publisher() as publisher:
            return await publisher.publish("a", b"x")

    assert asyncio.run(run()).publish_ack_future.result(0).sequence == 1


def test_without_acknowledgements_the_future_completes_and_drain_ends(desk: Desk) -> None:
    with desk.publisher(bridge=MemoryBridge(desk.name, acks=False)) as publisher:
        assert ack_of(publisher.publish_async("a", b"x")).result(LONG)
    assert desk.ear.events("p-1") == ["published"]


def test_defaults_are_those_of_the_specification(desk: Desk) -> None:
    """MP-03 to MP-09."""
    publisher = ManagedPublisher(MemoryBridge(desk.name))
    policy = publisher.window.policy
    assert (policy.max_in_flight, policy.refill_allowed_at, policy.wait_timeout, policy.retry) == (50, 0, 5.0, None)
    assert (publisher._poll_time, publisher._hold_pause_time) == (0.1, 0.1)
    assert publisher.id_prefix != ManagedPublisher(MemoryBridge(desk.name)).id_prefix


@pytest.mark.parametrize(
    "options",
    [{"max_in_flight": 0}, {"refill_allowed_at": 50}, {"refill_allowed_at": -1}, {"wait_timeout": 0},
     {"poll_time": 0}, {"hold_pause_time": -1}, {"queue_size": 0}],
)  # fmt: skip
def test_values_out_of_range_are_refused(desk: Desk, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        desk.publisher(**options)


def test_retry_config_building() -> None:
    config = RetryConfig()
    assert (config.attempts, config.backoffs, config.deadline) == (2, (0.25, 0.25, 0.5, 0.5, 3.0, 5.0), None)
    assert [config.backoff(i) for i in (1, 6, 7, 99)] == [0.25, 5.0, 5.0, 5.0], "the last one repeats"
    for bad in ({"attempts": 0}, {"backoffs": ()}, {"deadline": 0}, {"attempts": None}):
        with pytest.raises(ConfigError):
            RetryConfig(**bad)


def test_a_publisher_that_was_not_closed_warns(desk: Desk) -> None:
    publisher = ManagedPublisher(MemoryBridge(desk.name))
    publisher.publish_async("a", b"")
    holder = [publisher]
    del publisher
    with pytest.warns(ResourceWarning, match="not closed"):
        holder.clear()


def test_something_that_cannot_publish_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot publish through"):
        ManagedPublisher(object())
