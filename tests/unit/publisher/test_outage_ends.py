"""When an outage begins and ends for what waits to be sent. The test gives the time; the publisher has no thread."""

from __future__ import annotations

from uuid import uuid4

import numpy as np
import pytest
from mama_spark.bridge import Acks, BridgeEvent, EventKind, PollResult
from mama_spark.bridges.memory import MemoryBridge
from mama_spark.message import MessageBatch
from mama_spark.options.window import RetryPolicy, WindowConfig
from mama_spark.publisher.batch_publisher import BatchPublisher
from mama_spark.sending.flight import FlightState
from mama_spark.sending.flight_batch import FlightBatch
from mama_spark.sending.window import PROBE

POLICY = WindowConfig(128, 64, retry=RetryPolicy(None, (0.01,), 60.0))

TIMEOUT = 10.0


class SteppedPublisher:
    """A publisher without its thread: the test lets its time pass, in steps that a publisher makes."""

    def __init__(self) -> None:
        bridge = MemoryBridge(uuid4().hex)
        bridge.open()
        self.publisher = BatchPublisher(
            bridge, POLICY, on_finished=lambda flights: None, outage_timeout=TIMEOUT, survive_outage=True
        )
        self.now = 0.0

    def happens(self, *events: BridgeEvent, acks: bool = False) -> None:
        found = [Acks(np.array([1 << 40]), None, None, None, self.now)] if acks else []
        self.publisher._loop.apply(PollResult(events=list(events), acks=found))

    def put(self, n: int = 2) -> FlightBatch:
        return self.publisher.put(MessageBatch.of(["t"] * n, [b""] * n))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            self.publisher._end_outage(self.now)

    def waits(self, seconds: float) -> bool:
        """Whether messages that come now still wait after so many seconds."""
        flights = self.put()
        self.wait(seconds)
        waiting = bool((flights.state == FlightState.QUEUED).all())
        assert waiting or (flights.state == FlightState.COMPLETED_EXCEPTIONALLY).all()
        self.publisher._queue.clear()
        return waiting


CUT = BridgeEvent(EventKind.DISCONNECTED, "cut", 0.0)


@pytest.fixture
def away() -> SteppedPublisher:
    """Its connection has been lost for longer than its timeout."""
    stepped = SteppedPublisher()
    stepped.happens(CUT)
    assert stepped.waits(TIMEOUT)
    assert not stepped.waits(1.0)
    return stepped


def test_as_long_as_an_outage_lasts_what_comes_fails_at_once(away: SteppedPublisher) -> None:
    assert not away.waits(0.5)
    away.wait(3 * TIMEOUT)
    assert not away.waits(0.5)


def test_an_outage_is_over_when_something_is_acknowledged(away: SteppedPublisher) -> None:
    away.happens(acks=True)
    assert away.waits(TIMEOUT)
    assert not away.waits(1.0)


def test_an_outage_is_over_when_the_connection_is_back(away: SteppedPublisher) -> None:
    away.happens(BridgeEvent(EventKind.RECONNECTED, "", away.now))
    assert away.waits(1.0)
    away.happens(CUT)
    assert away.waits(1.0)


def test_silence_is_one_outage_for_all_messages_and_a_few_show_when_it_is_over() -> None:
    """The middleware takes messages and answers nothing: not one round of waiting after another."""
    stepped = SteppedPublisher()
    publisher = stepped.publisher
    publisher.bridge.broker.then(["drop"] * 1000)  # type: ignore[attr-defined]
    flights = stepped.put(500)
    publisher._launch()
    stepped.wait(TIMEOUT + 1)
    sent = POLICY.max_in_flight
    assert (flights.state[:sent] == FlightState.TIMEOUT).all()
    assert (flights.state[sent:] == FlightState.COMPLETED_EXCEPTIONALLY).all()
    assert "nothing was acknowledged for 10 s: no answer comes" in flights.errors[0].info
    later = stepped.put(500)
    publisher._launch()
    stepped.wait(POLICY.wait_timeout)
    assert (later.state[PROBE:] == FlightState.QUEUED).all()
    stepped.wait(1.0)
    assert (later.state[:PROBE] == FlightState.IN_FLIGHT).all()
    assert (later.state[PROBE:] == FlightState.COMPLETED_EXCEPTIONALLY).all()
