"""An outage: how long it is waited for, what is said of it, and its end."""

from __future__ import annotations

from uuid import uuid4

import numpy as np
import pytest
from mama_spark.contracts.bridge import Ack, Acks, BridgeEvent, EventKind, PollResult
from mama_spark.contracts.errors import BadRow
from mama_spark.contracts.message import MessageBatch
from mama_spark.memory import MemoryBridge, MemoryBroker
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.batch_config import BatchConfig, OnOutage
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch, StoredFlights
from mama_spark.publishing.window.window import PROBE

POLICY = WindowConfig(64, 0, retry=RetryPolicy(None, (0.01,), 0.2))


# --- what is logged while nothing is acknowledged, and when that is over ----------------------------------------------

WAIT = 20.0


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ("acked", "messages are acknowledged again"),
        ("timed out", "no message waits any more, and none was acknowledged: 2 timed out, each with its reason"),
        ("published", "no message waits any more, and none was acknowledged: 2 published without subscribers"),
        ("both", "messages are acknowledged again; meanwhile, 1 published without subscribers"),
    ],
)
def test_the_end_of_an_outage_says_what_became_of_the_messages(
    answer: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    bridge = MemoryBridge(uuid4().hex)
    bridge.open()
    bridge.broker.then(["late", "late"])
    publisher = BatchPublisher(
        bridge, POLICY, on_finished=lambda flights: None, config=BatchConfig(outage_timeout=10 * WAIT)
    )
    publisher._loop.outage.notice = WAIT / 2
    publisher.put(MessageBatch.of(["t"] * 2, [b""] * 2))
    publisher._launch()
    for second in range(int(WAIT / 2) + 3):
        publisher._end_outage(float(second))
    assert "2 messages wait: no answer comes" in caplog.records[-1].getMessage()
    if answer in ("published", "both"):
        unwanted = np.arange(1 if answer == "both" else 0, 2)
        publisher._loop.apply(PollResult([Acks(unwanted, None, None, None, 0.0, level=Ack.NONE)]))
    if answer in ("acked", "both"):
        bridge.broker.release()
        publisher._loop.apply(bridge.poll(0))
    if answer == "timed out":
        publisher.window.expire((publisher.window.wake_at() or 0.0) + 1.0)
    for second in range(2):
        publisher._end_outage(WAIT + second)
    assert caplog.records[-1].getMessage() == end
    MemoryBroker.forget(bridge.broker.name)


# When an outage begins and ends for what waits to be sent. The test gives the time; the publisher has no thread

POLICY_OF_ENDS = WindowConfig(128, 64, retry=RetryPolicy(None, (0.01,), 60.0))

TIMEOUT = 10.0


class SteppedPublisher:
    """A publisher without its thread: the test lets its time pass, in steps that a publisher makes."""

    def __init__(self) -> None:
        bridge = MemoryBridge(uuid4().hex)
        bridge.open()
        self.publisher = BatchPublisher(
            bridge, POLICY_OF_ENDS, on_finished=lambda flights: None, config=BatchConfig(OnOutage.FAIL_ROWS, TIMEOUT)
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


@pytest.mark.parametrize("end", ["outage", "stop"])
@pytest.mark.parametrize("prepared", [False, True])
def test_rows_that_are_stored_already_are_acknowledged_also_when_the_others_are_given_up(
    end: str, prepared: bool
) -> None:
    stepped = SteppedPublisher()
    publisher = stepped.publisher
    stepped.happens(CUT)
    stored = [StoredFlights("S", np.array([0, 2]), np.array([7, 8]))]
    flights = publisher.put(MessageBatch.of(["t"] * 4, [b""] * 4), [(2, BadRow("x")), (3, BadRow("y"))], stored=stored)
    if prepared:
        publisher._launch()
    if end == "outage":
        stepped.wait(TIMEOUT + 1)
    else:
        publisher._abandon("the publisher was stopped")
    assert not flights.open
    acked, failed = FlightState.ACKED, FlightState.COMPLETED_EXCEPTIONALLY
    assert flights.state.tolist() == [acked, failed, acked, failed]
    assert flights.sequence[[0, 2]].tolist() == [7, 8]
    assert (publisher.counters.acked, publisher.counters.failed, publisher.counters.sends) == (2, 2, 0)


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
    sent = POLICY_OF_ENDS.max_in_flight
    assert (flights.state[:sent] == FlightState.TIMEOUT).all()
    assert (flights.state[sent:] == FlightState.COMPLETED_EXCEPTIONALLY).all()
    assert "nothing was acknowledged for 10 s: no answer comes" in flights.errors[0].info
    assert flights.errors[sent].retryable
    assert not flights.errors[sent].may_have_landed
    later = stepped.put(500)
    publisher._launch()
    stepped.wait(POLICY_OF_ENDS.wait_timeout)
    assert (later.state[PROBE:] == FlightState.QUEUED).all()
    stepped.wait(1.0)
    assert (later.state[:PROBE] == FlightState.IN_FLIGHT).all()
    assert (later.state[PROBE:] == FlightState.COMPLETED_EXCEPTIONALLY).all()
