"""A batch is stored before the call returns: over the in-memory bridge with scripted faults. Time is the test's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from uuid import uuid4

import pytest
from mama_spark.contracts.bridge import PollResult, ValidationResult
from mama_spark.contracts.errors import (
    AckTimeout,
    BadTopic,
    NoResponders,
    OutcomeUnknown,
    PublishError,
    Rejected,
    Unavailable,
)
from mama_spark.contracts.message import MessageBatch
from mama_spark.memory import MemoryBridge, MemoryBroker
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.window.blocking_sender import BlockingSender
from mama_spark.publishing.window.flight import FlightState

RETRY = RetryPolicy(None, (0.1,), 10.0)
ORDERED = WindowConfig(100, 50, 1.0, RETRY, ordered=True)
NOT_REPEATABLE = WindowConfig(100, 50, 1.0, RETRY, resend_uncertain=False)


class Clocked(MemoryBridge):
    """Waits by moving the clock of the test."""

    now = 100.0

    def clock(self) -> float:
        return self.now

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        assert math.isfinite(timeout)
        polled = super().poll(0.0, want)
        if not polled:
            self.now += timeout
        for answers in (*polled.acks, *polled.refusals, *polled.events):
            object.__setattr__(answers, "at", self.now)
        return polled


@pytest.fixture
def bridge() -> Iterator[Clocked]:
    made = Clocked(uuid4().hex)
    made.open()
    yield made
    made.close()
    MemoryBroker.forget(made.broker.name)


def batch(n: int, start: int = 0) -> MessageBatch:
    numbers = range(start, start + n)
    return MessageBatch.of(["t"] * n, [b"%d" % i for i in numbers], ids=[f"id-{i}" for i in numbers])


def sender(bridge: Clocked, policy: WindowConfig = ORDERED) -> BlockingSender:
    return BlockingSender(bridge, policy, clock=bridge.clock)


def stored(bridge: Clocked) -> list[int]:
    return [int(m.payload) for m in bridge.broker.messages()]


def test_all_are_stored_in_order_when_the_call_returns(bridge: Clocked) -> None:
    flights = sender(bridge).store(batch(1000), 5.0)
    assert (flights.state == FlightState.ACKED).all()
    assert flights.sequence.tolist() == list(range(1, 1001))
    assert stored(bridge) == list(range(1000))


def test_an_empty_batch_needs_nothing(bridge: Clocked) -> None:
    assert sender(bridge).store(batch(0), 5.0).n == 0


@pytest.mark.parametrize("fault", ["lose", "drop", "503", "429", "409", "disconnect", "full", "dup", "late"])
def test_what_may_be_sent_again_is_and_the_next_batch_is_stored_too(bridge: Clocked, fault: str) -> None:
    bridge.broker.then(["ack", fault])
    one = sender(bridge)
    one.store(batch(5), 9.0)
    one.store(batch(5, 5), 9.0)
    assert sorted(stored(bridge)) == list(range(10))


def test_a_rejected_message_ends_the_call_with_its_error(bridge: Clocked) -> None:
    bridge.broker.then(["ack", "reject"])
    one = sender(bridge)
    with pytest.raises(Rejected, match="refused by the script"):
        one.store(batch(3), 5.0)
    assert one.window.in_flight == 0
    one.store(batch(2, 10), 5.0)
    assert stored(bridge)[-2:] == [10, 11]


def test_what_the_bridge_finds_wrong_is_raised_before_anything_is_sent(bridge: Clocked) -> None:
    with pytest.raises(BadTopic):
        sender(bridge).store(MessageBatch.of(["t", "no topic *"], [b"1", b"2"]), 5.0)
    assert stored(bridge) == []


def test_a_process_that_stood_still_before_its_first_look_looks(
    bridge: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = bridge.prepare

    def stand_still(messages: MessageBatch) -> ValidationResult:
        bridge.now += 9.0
        return prepare(messages)

    monkeypatch.setattr(bridge, "prepare", stand_still)
    assert sender(bridge).store(batch(3), 1.0).sequence.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("faults", "policy", "limit", "error", "text", "until"),
    [
        (["lose"], NOT_REPEATABLE, 5.0, AckTimeout, None, 1.0),
        (["lose"], NOT_REPEATABLE, 0.5, AckTimeout, None, 0.5),
        (["lose", "disconnect"], NOT_REPEATABLE, 5.0, OutcomeUnknown, "cut the connection", 0.0),
        (["503"] * 1000, ORDERED, 5.0, Unavailable, "not stored within 5 s: .*no responders", 5.0),
        (["503"] * 1000, WindowConfig(1, 0, 1.0, RetryPolicy(None, (0.1,), 2.0)), 50.0, Unavailable, None, 2.0),
        (["503"], WindowConfig(5, 0, 5.0), 5.0, NoResponders, None, 0.0),
        (["kill"], ORDERED, 3.0, Unavailable, "closed", 0.0),
        (None, ORDERED, 3.0, Unavailable, "no acknowledgement", 3.0),
    ],
    ids=["without ids", "time is up", "lost connection", "outage", "retry deadline", "no retries", "closed", "down"],
)
def test_what_is_not_stored_ends_the_call_in_time_with_the_error(
    bridge: Clocked, faults: list[str] | None, policy: WindowConfig, limit: float, error: type[PublishError],
    text: str | None, until: float,
) -> None:  # fmt: skip
    bridge.broker.up = faults is not None
    bridge.broker.then(faults or [])
    with pytest.raises(error, match=text) as caught:
        sender(bridge, policy).store(batch(2), limit)
    assert bridge.now == pytest.approx(100.0 + until, abs=0.2)
    assert caught.value.may_have_landed is (error in (AckTimeout, OutcomeUnknown))
    if until == 2.0:
        assert isinstance(caught.value.__cause__, NoResponders)
    if error is AckTimeout:
        assert stored(bridge) == [0, 1], "it is not sent again"
