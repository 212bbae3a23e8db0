"""When an outage begins and ends for what waits to be sent. Time is what the test says; the pump has no thread here."""

from __future__ import annotations

from uuid import uuid4

import numpy as np
from mama_spark.bridge import Acks, BridgeEvent, EventKind, PollResult
from mama_spark.bridges.memory import MemoryBridge
from mama_spark.message import MessageBatch
from mama_spark.options.window import WindowConfig
from mama_spark.publisher.batch_publisher import BatchPublisher
from mama_spark.sending.flight import FlightState

PATIENCE = 10.0


def waits(publisher: BatchPublisher, now: float) -> bool:
    """Whether messages that come now wait, after a look at the time."""
    block = publisher.put(MessageBatch.of(["t"] * 2, [b""] * 2))
    publisher._give_up_outage(now)
    waiting = bool((block.state == FlightState.QUEUED).all())
    assert waiting or (block.state == FlightState.COMPLETED_EXCEPTIONALLY).all()
    publisher._jobs.clear()
    return waiting


def away() -> BatchPublisher:
    """A publisher whose connection is lost for longer than its patience."""
    publisher = BatchPublisher(
        MemoryBridge(uuid4().hex),
        WindowConfig(),
        on_finished=lambda block: None,
        patience=PATIENCE,
        survive_outage=True,
    )
    publisher._event(BridgeEvent(EventKind.DISCONNECTED, "cut", 0.0))
    assert waits(publisher, 0.0)
    assert waits(publisher, PATIENCE)
    assert not waits(publisher, PATIENCE + 0.1)
    return publisher


def test_as_long_as_an_outage_lasts_what_comes_fails_at_once() -> None:
    publisher = away()
    assert not waits(publisher, PATIENCE + 0.2)
    assert not waits(publisher, 3 * PATIENCE)


def test_an_outage_is_over_when_something_is_acknowledged() -> None:
    publisher = away()
    publisher._apply(PollResult(acks=[Acks(np.array([7]), None, None, None, 20.0)]))
    assert waits(publisher, 21.0)
    assert waits(publisher, 21.0 + PATIENCE)
    assert not waits(publisher, 21.1 + PATIENCE)


def test_an_outage_is_over_when_the_connection_is_back() -> None:
    publisher = away()
    publisher._event(BridgeEvent(EventKind.RECONNECTED, "", 20.0))
    assert waits(publisher, 21.0)
    publisher._event(BridgeEvent(EventKind.DISCONNECTED, "cut", 40.0))
    assert waits(publisher, 41.0)
