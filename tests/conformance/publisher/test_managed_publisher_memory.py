"""The specification's publisher under faults by script: retries, refusals, outages; the retrier's conditions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mama_spark.contracts.bridge import PollResult, ValidationResult
from mama_spark.contracts.errors import (
    BackgroundTaskFailed,
    BadRow,
    ConfigError,
    NoResponders,
    NotPublished,
    OutcomeUnknown,
    PublishError,
    RateLimited,
    Rejected,
    Unavailable,
)
from mama_spark.contracts.message import MessageBatch
from mama_spark.memory import MemoryBridge
from mama_spark.publishing.api import PublishOptions, RetryConfig
from mama_spark.publishing.managed.managed_publisher import ManagedPublisher
from mama_spark.testing.waiting import until

from tests.support.publisher_harness import LONG, MemoryPublisherHarness, ack_of

RETRY = RetryConfig.doubling(0.01, 0.05, deadline=LONG)


@pytest.fixture
def harness() -> Iterator[MemoryPublisherHarness]:
    with MemoryPublisherHarness() as harness:
        yield harness


@pytest.mark.spec("MP-04", "MP-34")
def test_publish_msg_async_with_pending_msgs(harness: MemoryPublisherHarness) -> None:
    """Never more in flight than allowed."""
    harness.broker.then(["late"] * 12)
    publisher = harness.publisher(max_in_flight=5, wait_timeout=LONG).start()
    futures = [publisher.publish_async("a", b"%d" % i) for i in range(12)]
    until(lambda: publisher.counters.sends == 5)
    assert publisher.window.holding
    assert not futures[5].done()
    while not futures[-1].done():
        assert publisher.window.in_flight <= 5
        harness.broker.release()
        time.sleep(0.001)
    harness.broker.release()
    publisher.drain(LONG)
    assert publisher.counters.acked == 12


@pytest.mark.spec("MP-06", "MP-32")
def test_publish_async_retry(harness: MemoryPublisherHarness) -> None:
    """Nobody there at first; sent again until somebody is."""
    harness.broker.then(["503"] * 3)
    with harness.publisher(max_in_flight=1, retry_config=RETRY) as publisher:
        flight = publisher.publish_async("a", b"").result(LONG)
        flight.publish_ack_future.result(LONG)
    assert flight.sends == 4
    assert harness.listener.events("p-1") == ["published", "acked"], "published once, however often it was sent"


@pytest.mark.spec("MP-06", "MP-13", "MP-40", "MP-32")
def test_publish_async_retry_disabled_fails_at_once(harness: MemoryPublisherHarness) -> None:
    harness.broker.then(["503"])
    with harness.publisher() as publisher:
        flight = publisher.publish_async("a", b"").result(LONG)
        assert isinstance(flight.publish_ack_future.exception(LONG), PublishError)
    assert harness.listener.events("p-1") == ["published", "completed_exceptionally"]


def test_publish_raising_inside_the_runner_fails_that_flight_and_the_runner_goes_on(
    harness: MemoryPublisherHarness,
) -> None:
    class Raises(MemoryBridge):
        def send(self, batch: MessageBatch, first_token: int) -> int:
            if b"bad" in batch.payloads.to_pylist():
                raise OSError("broken pipe")
            return super().send(batch, first_token)

    with harness.publisher(target=Raises(harness.name)) as publisher:
        bad = publisher.publish_async("a", b"bad")
        with pytest.raises(PublishError, match="broken pipe"):
            bad.result(LONG)
        assert ack_of(publisher.publish_async("a", b"good")).result(LONG)
    assert harness.listener.events("p-1") == ["completed_exceptionally"]


def test_a_closed_connection_tells_every_waiter(harness: MemoryPublisherHarness) -> None:
    harness.broker.then(["lose", "kill"])
    publisher = harness.publisher(max_in_flight=2).start()
    futures = [publisher.publish_async("a", b"") for _ in range(5)]
    with pytest.raises(BackgroundTaskFailed):
        publisher.drain(LONG)
    assert all(f.exception(LONG) or ack_of(f).exception(LONG) for f in futures)


def test_without_acknowledgements_the_future_completes_and_drain_ends(harness: MemoryPublisherHarness) -> None:
    with harness.publisher(target=MemoryBridge(harness.name, acks=False)) as publisher:
        assert ack_of(publisher.publish_async("a", b"x")).result(LONG)
    assert harness.listener.events("p-1") == ["published"]


@pytest.mark.parametrize(
    "options",
    [{"max_in_flight": 0}, {"refill_allowed_at": 50}, {"refill_allowed_at": -1}, {"wait_timeout": 0},
     {"poll_time": 0}, {"hold_pause_time": -1}, {"queue_size": 0}],
)  # fmt: skip
def test_values_out_of_range_are_refused(harness: MemoryPublisherHarness, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        harness.publisher(**options)


def test_retry_config_building() -> None:
    config = RetryConfig()
    assert (config.attempts, config.backoffs, config.deadline) == (2, (0.25, 0.25, 0.5, 0.5, 3.0, 5.0), None)
    assert [config.backoff(i) for i in (1, 6, 7, 99)] == [0.25, 5.0, 5.0, 5.0], "the last one repeats"
    for bad in ({"attempts": 0}, {"backoffs": ()}, {"deadline": 0}, {"attempts": None}):
        with pytest.raises(ConfigError):
            RetryConfig(**bad)


def test_a_publisher_that_was_not_closed_warns(harness: MemoryPublisherHarness) -> None:
    publisher = ManagedPublisher(MemoryBridge(harness.name))
    publisher.publish_async("a", b"")
    holder = [publisher]
    del publisher
    with pytest.warns(ResourceWarning, match="not closed"):
        holder.clear()


def test_something_that_cannot_publish_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot publish through"):
        ManagedPublisher(object())


def resent(error: type[PublishError]) -> Callable[[PublishError], bool]:
    return lambda raised: isinstance(raised, error)


CONDITIONS = {"429": RateLimited, "503": NoResponders, "lose": OutcomeUnknown, "reject": Rejected}


@pytest.mark.parametrize("fault", CONDITIONS)
@pytest.mark.parametrize("condition", [*CONDITIONS, "default", "all"])
def test_config(harness: MemoryPublisherHarness, condition: str, fault: str) -> None:
    """As testConfig: too many requests, no responders and no answer are on, API errors off; each alone; all."""
    conditions = {"default": {}, "all": {"retry_on": lambda error: True}}
    options: dict[str, Any] = conditions.get(condition, {"retry_on": resent(CONDITIONS.get(condition, PublishError))})
    config = RetryConfig(1, (0.01,), **options)
    on = condition in (fault, "all") or (condition == "default" and fault != "reject")
    harness.broker.then([fault])
    with harness.publisher(retry_config=config, wait_timeout=0.1 if fault == "lose" else LONG) as publisher:
        future = publisher.publish_async("a", b"")
    assert future.result(0).sends == 1 + on
    error = ack_of(future).exception(0)
    assert error is None if on else isinstance(error, CONDITIONS[fault])


def test_publish_async_retry_does_not_stall_others(harness: MemoryPublisherHarness) -> None:
    """As TestPublishAsyncRetry, "a retry does not stall": what waits for its resend keeps only its own place."""
    harness.broker.then(["409"])
    publisher = harness.publisher(
        max_in_flight=2, refill_allowed_at=1, retry_config=RetryConfig(1, (10 * LONG,))
    ).start()
    first = publisher.publish_async("a", b"first")
    others = [publisher.publish_async("a", b"%d" % i) for i in range(20)]
    for other in others:
        assert ack_of(other).result(LONG)
    assert not ack_of(first).done()


@pytest.mark.spec("MP-22")
def test_expected_last_subject_sequence_subject_is_a_header_and_needs_its_sequence(
    harness: MemoryPublisherHarness,
) -> None:
    options = PublishOptions(expected_last_subject_sequence=7, expected_last_subject_sequence_subject="a.*")
    with harness.publisher() as publisher:
        publisher.publish_async("a", b"", options=options)
    (held,) = harness.held()
    assert held.headers == {
        "Nats-Expected-Last-Subject-Sequence": ["7"],
        "Nats-Expected-Last-Subject-Sequence-Subject": ["a.*"],
    }
    with pytest.raises(ConfigError):
        PublishOptions(expected_last_subject_sequence_subject="a.*")


@pytest.mark.spec("MP-07", "MP-30", "MP-37", "MP-42")
@pytest.mark.parametrize("under_way", [False, True])
def test_waiting_loops_do_not_spin(harness: MemoryPublisherHarness, under_way: bool) -> None:
    """The text puts each flight back into the queue at once, a core's worth of work."""

    class Counting(MemoryBridge):
        polls = 0

        def poll(self, timeout: float, want: int = 1) -> PollResult:
            self.polls += 1
            return super().poll(timeout, want)

    bridge = Counting(harness.name)
    publisher = harness.publisher(target=bridge, wait_timeout=LONG).start()
    assert ack_of(publisher.publish_async("a", b"")).result(LONG)
    if under_way:
        publisher.publish_async(harness.lose(1), b"")
        until(lambda: publisher.window.in_flight)
    began, polls = time.monotonic(), bridge.polls  # in this order: a pause between them allows more
    until(lambda: time.monotonic() > began + 0.3)
    assert bridge.polls - polls <= 400 * (time.monotonic() - began), "at most every five milliseconds, and some"


def test_a_bridge_that_does_not_open_tells_every_waiter(harness: MemoryPublisherHarness) -> None:
    harness.broker.up = False
    publisher = harness.publisher()
    future = publisher.publish_async("a", b"")
    publisher.start()
    assert isinstance(future.exception(LONG), PublishError)
    with pytest.raises(BackgroundTaskFailed, match="down"):
        publisher.drain(LONG)
    with pytest.raises(BackgroundTaskFailed, match="down"):
        publisher.publish_async("a", b"")


class Restarting(MemoryBridge):
    up = False

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        if not self.up:
            raise Unavailable("the server restarts")
        return super().prepare(batch)


def test_a_message_that_cannot_be_checked_in_time_fails_and_others_follow(harness: MemoryPublisherHarness) -> None:
    bridge = Restarting(harness.name)
    publisher = harness.publisher(target=bridge, wait_timeout=0.2, hold_pause_time=0.01).start()
    late = publisher.publish_async("a", b"late").exception(LONG)
    assert isinstance(late, NoResponders)
    assert "not sent: the server restarts" in late.info
    bridge.up = True
    assert ack_of(publisher.publish_async("a", b"good")).result(LONG)
    publisher.drain(LONG)
    assert harness.payloads() == [b"good"]


def test_a_message_is_sent_only_after_its_check_however_long_that_is_unavailable(
    harness: MemoryPublisherHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """A header in its lines would destroy what is stored."""
    bridge = Restarting(harness.name)
    publisher = harness.publisher(
        target=bridge, retry_config=RETRY, wait_timeout=0.2, poll_time=0.01, hold_pause_time=0.01
    ).start()
    bad = publisher.publish_async("a", b"", {"h": "x\r\nNats-Rollup: all"})
    good = publisher.publish_async("a", b"good")
    until(lambda: "the server restarts" in caplog.text)
    assert not publisher.counters.sends
    bridge.up = True
    assert isinstance(bad.exception(LONG), BadRow)
    assert ack_of(good).result(LONG)
    bridge.up = False
    later = publisher.publish_async("a", b"later")
    until(lambda: not len(publisher._queue))
    publisher.stop()
    assert isinstance(later.exception(LONG), NotPublished)
    assert harness.payloads() == [b"good"]


@pytest.mark.parametrize(
    ("message", "text"),
    [({"subject": "a\udcff"}, "the subject cannot be encoded as UTF-8"),
     ({"subject": None}, "the subject is of type NoneType"),
     ({"headers": {"\udcff": "x"}}, "the name of a header cannot"),
     ({"headers": {"n": "\udcff"}}, "a value of the header 'n' cannot"),
     ({"headers": {"n": [5]}}, "a value of the header 'n' is of type int"),
     ({"options": PublishOptions(msg_id=42)}, "the message id is of type int"),  # type: ignore[arg-type]
     ({"options": PublishOptions(expected_stream="\udcff")}, "a value of the header 'Nats-Expected-Stream' cannot"),
     ({"body": 5}, "the body is of type int"),
     ({"body": "text"}, "the body is of type str")],
)  # fmt: skip
def test_a_malformed_message_is_refused_to_its_caller_and_ends_nothing(
    harness: MemoryPublisherHarness, message: dict[str, Any], text: str
) -> None:
    with harness.publisher() as publisher:
        with pytest.raises(BadRow, match=text):
            publisher.publish_async(**{"subject": "a", "body": b"bad", **message})
        assert ack_of(publisher.publish_async("a", b"good")).result(LONG)
    assert harness.payloads() == [b"good"]


def test_an_error_between_queue_and_window_tells_every_waiter(
    harness: MemoryPublisherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> MessageBatch:
        raise MemoryError("no more")

    publisher = harness.publisher(max_in_flight=2)
    futures = [publisher.publish_async("a", b"") for _ in range(3)]
    futures[0].cancel()
    monkeypatch.setattr(MessageBatch, "of", broken)
    publisher.start()
    assert all(isinstance(f.exception(LONG), NotPublished) for f in futures[1:])
    with pytest.raises(BackgroundTaskFailed, match="no more"):
        publisher.drain(LONG)


def test_a_coroutine_that_ended_while_it_waited_for_space_harms_nobody(harness: MemoryPublisherHarness) -> None:
    publisher = harness.publisher(queue_size=2)
    queued = [publisher.publish_async("a", b"%d" % i) for i in range(2)]
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(publisher.publish("a", b"too late"), 0.05))
    publisher.start()
    assert all(ack_of(future).result(LONG) for future in queued)
    publisher.drain(LONG)
    assert harness.payloads() == [b"0", b"1"]
