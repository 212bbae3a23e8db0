"""When an outage begins and ends for what waits to be sent. The test gives the time; the publisher has no thread."""

from __future__ import annotations

from uuid import uuid4

import numpy as np
from mama_spark.bridge import Acks, BridgeEvent, EventKind, PollResult
from mama_spark.bridges.memory import MemoryBridge
from mama_spark.message import MessageBatch
from mama_spark.options.window import WindowConfig
from mama_spark.publisher.batch_publisher import BatchPublisher
from mama_spark.sending.flight import FlightState

TIMEOUT = 10.0


def waits(publisher: BatchPublisher, now: float) -> bool:
    """Whether messages that come now wait, after a check of the time."""
    flights = publisher.put(MessageBatch.of(["t"] * 2, [b""] * 2))
    publisher._end_outage(now)
    waiting = bool((flights.state == FlightState.QUEUED).all())
    assert waiting or (flights.state == FlightState.COMPLETED_EXCEPTIONALLY).all()
    publisher._queue.clear()
    return waiting


def away() -> BatchPublisher:
    """A publisher whose connection is lost for longer than its timeout."""
    publisher = BatchPublisher(
        MemoryBridge(uuid4().hex),
        WindowConfig(),
        on_finished=lambda flights: None,
        outage_timeout=TIMEOUT,
        survive_outage=True,
    )
    publisher._loop.apply(PollResult(events=[BridgeEvent(EventKind.DISCONNECTED, "cut", 0.0)]))
    assert waits(publisher, 0.0)
    assert waits(publisher, TIMEOUT)
    assert not waits(publisher, TIMEOUT + 0.1)
    return publisher


def test_as_long_as_an_outage_lasts_what_comes_fails_at_once() -> None:
    publisher = away()
    assert not waits(publisher, TIMEOUT + 0.2)
    assert not waits(publisher, 3 * TIMEOUT)


def test_an_outage_is_over_when_something_is_acknowledged() -> None:
    publisher = away()
    publisher._loop.apply(PollResult(acks=[Acks(np.array([7]), None, None, None, 20.0)]))
    assert waits(publisher, 21.0)
    assert waits(publisher, 21.0 + TIMEOUT)
    assert not waits(publisher, 21.1 + TIMEOUT)


def test_an_outage_is_over_when_the_connection_is_back() -> None:
    publisher = away()
    publisher._loop.apply(PollResult(events=[BridgeEvent(EventKind.RECONNECTED, "", 20.0)]))
    assert waits(publisher, 21.0)
    publisher._loop.apply(PollResult(events=[BridgeEvent(EventKind.DISCONNECTED, "cut", 40.0)]))
    assert waits(publisher, 41.0)
