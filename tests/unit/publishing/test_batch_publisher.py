"""The batch publisher, against the in-memory bridge with scripted faults."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
import pytest
from mama_spark.contracts.bridge import PollResult, ValidationResult
from mama_spark.contracts.errors import (
    BackgroundTaskFailed,
    BadRow,
    ClientClosed,
    ConfigError,
    NotPublished,
    PublishError,
    Unavailable,
)
from mama_spark.contracts.message import MessageBatch
from mama_spark.memory import MemoryBridge, MemoryBroker
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.batch_config import BatchConfig, BatchHooks, OnOutage
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.wall_clock import NEVER, WallClock
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch, StoredFlights
from mama_spark.testing.waiting import eventually

from tests.support.tiers import EXPLORE

RETRY = RetryPolicy.doubling(0.01, 0.05, deadline=60)
POLICY = WindowConfig(256, 128, wait_timeout=30, retry=RETRY)
_OPTIONS = BatchConfig, BatchHooks


class PublisherFixture:
    """A broker, an open bridge, a started publisher, and what it finished."""

    def __init__(self) -> None:
        self.name = uuid4().hex
        self.broker = MemoryBroker.get(self.name)
        self.finished: list[FlightBatch] = []
        self.contexts: list[object] = []
        self.publishers: list[BatchPublisher] = []

    def on_finished(self, flights: FlightBatch) -> None:
        assert flights.open == 0
        self.finished.append(flights)
        self.contexts.append(flights.context)

    def publisher(self, policy: WindowConfig = POLICY, **more: Any) -> BatchPublisher:
        bridge = more.pop("bridge", None) or MemoryBridge(self.name)
        bridge.open()
        config, hooks = ({f.name: more.pop(f.name) for f in fields(kind) if f.name in more} for kind in _OPTIONS)
        more = {"on_finished": self.on_finished, **more}
        publisher = BatchPublisher(bridge, policy, config=BatchConfig(**config), hooks=BatchHooks(**hooks), **more)
        publisher.start()
        self.publishers.append(publisher)
        return publisher


@pytest.fixture
def fixture() -> Iterator[PublisherFixture]:
    fixture = PublisherFixture()
    yield fixture
    for publisher in fixture.publishers:
        publisher.stop()
    MemoryBroker.forget(fixture.name)


def batch(n: int, start: int = 0) -> MessageBatch:
    rows = range(start, start + n)
    return MessageBatch.of(["t.x"] * n, [b"%d" % i for i in rows], None, [f"id{i}" for i in rows])


def conserved(publisher: BatchPublisher) -> bool:
    c = publisher.counters
    return c.opened == c.acked + c.failed + c.timed_out + c.published


def test_every_row_of_every_batch_is_acked_and_stored_in_order(fixture: PublisherFixture) -> None:
    publisher = fixture.publisher()
    for i in range(5):
        publisher.put(batch(3000, i * 3000), context=i)
    publisher.drain()
    assert fixture.contexts == [0, 1, 2, 3, 4]
    assert [int(m.payload) for m in fixture.broker.messages()] == list(range(15_000))
    assert publisher.counters.acked == 15_000
    for b in fixture.finished:
        assert (b.state == FlightState.ACKED).all()
        assert (b.messages, b.context) == (None, None)
    assert (np.diff(np.concatenate([b.sequence for b in fixture.finished])) == 1).all()
    assert publisher.window.in_flight == 0


def test_any_mix_of_faults_conserves_every_row(fixture: PublisherFixture) -> None:
    rng = np.random.default_rng(3)
    words = ["ack", "lose", "drop", "503", "429", "409", "dup", "unknown", "disconnect", "reject", "full"]
    fixture.broker.then(rng.choice(words, 600 if EXPLORE else 200, p=[0.5, *[0.05] * 10]).tolist())
    told: list[PublishError] = []
    publisher = fixture.publisher(WindowConfig(64, 16, wait_timeout=0.1, retry=RETRY), on_resend=told.append)
    for i in range(4):
        publisher.put(batch(500, i * 500), context=i)
    publisher.wait_settled()  # the thread alone resends
    publisher.drain()
    assert conserved(publisher)
    assert told
    assert all(isinstance(reason, PublishError) for reason in told)
    stored = {int(m.payload) for m in fixture.broker.messages()}
    assert len(stored) == len(fixture.broker.messages()), "ids deduplicate resends"
    for first, flights in zip(fixture.contexts, fixture.finished, strict=True):
        assert isinstance(first, int)
        assert set((np.flatnonzero(flights.state == FlightState.ACKED) + first * 500).tolist()) <= stored
        assert set(flights.state.tolist()) <= {int(FlightState.ACKED), int(FlightState.COMPLETED_EXCEPTIONALLY)}


def test_bad_rows_fail_without_being_sent_and_the_others_go(fixture: PublisherFixture) -> None:
    publisher = fixture.publisher()
    rows = MessageBatch.of(["t", "t", "a.*", "t", "t"], [b"0", b"1", b"2", b"3", b"4"])
    flights = publisher.put(rows, rejected=[(0, BadRow("mine")), (3, BadRow("mine, too"))])
    publisher.drain()
    bad, ok = int(FlightState.COMPLETED_EXCEPTIONALLY), int(FlightState.ACKED)
    assert flights.state.tolist() == [bad, ok, bad, bad, ok]
    assert flights.errors[0].info == "mine"
    assert flights.errors[2].status == "BAD_SYMBOL"
    assert flights.sends.tolist() == [0, 1, 0, 0, 1]
    assert [m.payload for m in fixture.broker.messages()] == [b"1", b"4"]


def test_batches_without_a_row_to_send_are_finished_too(fixture: PublisherFixture) -> None:
    publisher = fixture.publisher()
    publisher.put(batch(0), context="empty")
    publisher.put(batch(1), rejected=[(0, BadRow("no"))], context="bad")
    publisher.drain()
    assert sorted(map(str, fixture.contexts)) == ["bad", "empty"]


def test_put_blocks_while_two_batches_wait(fixture: PublisherFixture) -> None:
    fixture.broker.then(["late"])
    publisher = fixture.publisher(WindowConfig(1, 0, wait_timeout=60))
    publisher.put(batch(1))
    eventually(lambda: fixture.broker._late, "the window is full")
    returned: list[int] = []

    def put_three() -> None:
        for i in range(3):
            publisher.put(batch(5, 10 + i * 10))
            returned.append(i)

    caller = threading.Thread(target=put_three)
    caller.start()
    eventually(lambda: len(returned) == 2, "two puts return")
    caller.join(0.5)
    assert returned == [0, 1], "the window is full, two batches wait: the third put must not return"
    fixture.broker.release()
    caller.join(60)
    assert returned == [0, 1, 2], "and does when one of them went"
    publisher.drain()
    assert publisher.counters.acked == 16


def test_a_batch_that_comes_when_the_last_one_is_settled_waits_for_no_answer(fixture: PublisherFixture) -> None:
    done = threading.Event()

    def on_finished(flights: FlightBatch) -> None:
        if flights.context is None:
            publisher.put(batch(3, 10), context="second")  # after this round's messages were sent
        else:
            done.set()

    publisher = fixture.publisher(on_finished=on_finished, poll_time=120.0, flush_after=120.0)
    publisher.put(batch(3))
    assert done.wait(60), "nothing is in flight, so no answer ends the wait: the batch waits for the poll time"


class Refusing:
    """A guard that lets messages pass until it is closed."""

    unfenced, expired, patience = False, True, math.inf

    def __init__(self) -> None:
        self.closed, self.asked, self.answered = False, 0, False

    def may_send(self) -> bool:
        self.asked += self.closed
        return not self.closed

    def stored(self, batches: Sequence[MessageBatch], since: float) -> list[list[StoredFlights]]:
        return [[] for _ in batches]

    def all_answered(self) -> None:
        self.answered = True


def test_who_takes_over_without_a_fence_names_each_row_that_it_sends(fixture: PublisherFixture) -> None:
    """A server that stands still may have a copy of it; what is found is stored once."""
    guard = Refusing()
    guard.unfenced = True
    publisher = fixture.publisher(guard=guard)
    publisher.put(batch(3), stored=[StoredFlights("S", np.array([1]), np.array([7]))])
    publisher.drain()
    assert fixture.finished[0].sends.tolist() == [1, 0, 1]
    assert fixture.finished[0].perhaps_twice().tolist() == [True, False, True]


def test_a_publisher_that_may_not_send_waits_between_two_questions(fixture: PublisherFixture) -> None:
    class TimeoutsBridge(MemoryBridge):
        """Notes the timeouts of its polls."""

        timeouts: ClassVar[list[float]] = []
        aborted = False

        def abort_unsent(self, why: str) -> None:
            self.aborted = True

        def poll(self, timeout: float, want: int = 1) -> PollResult:
            self.timeouts.append(timeout)
            return super().poll(timeout, want)

    guard, bridge = Refusing(), TimeoutsBridge(fixture.name)
    publisher = fixture.publisher(guard=guard, bridge=bridge)
    publisher.put(batch(3))
    eventually(lambda: len(fixture.finished) == 1, "the first batch is finished")
    guard.closed = True
    publisher.put(batch(3, 10))
    eventually(lambda: guard.asked > 2, "it asks the guard")
    asked, polls = guard.asked, len(bridge.timeouts)
    eventually(lambda: guard.asked > asked + 10, "it asks the guard again")
    assert all(bridge.timeouts[polls:])
    assert bridge.aborted
    guard.closed = False
    publisher.drain()
    assert publisher.counters.acked == 6
    assert guard.answered


def test_nothing_is_sent_when_that_was_forbidden_while_the_middleware_was_asked_about_the_batch(
    fixture: PublisherFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes its time, and the connection may lead to another server by then."""
    guard, bridge = Refusing(), MemoryBridge(fixture.name)
    prepare = bridge.prepare

    def forbid(messages: MessageBatch) -> ValidationResult:
        guard.closed = True
        return prepare(messages)

    monkeypatch.setattr(bridge, "prepare", forbid)
    publisher = fixture.publisher(guard=guard, bridge=bridge)
    publisher.put(batch(3))
    eventually(lambda: guard.asked > 3, "it asks the guard again")
    assert not publisher.counters.sends
    guard.closed = False
    publisher.drain()
    assert publisher.counters.acked == 3


def test_stop_settles_everything_and_later_puts_raise(fixture: PublisherFixture) -> None:
    fixture.broker.then(["lose"] * 4)
    publisher = fixture.publisher(WindowConfig(4, 0, wait_timeout=60))
    flights = publisher.put(batch(10))
    eventually(lambda: publisher.counters.sends == 4, "the window is full")
    publisher.stop()
    publisher.stop()
    assert (flights.state == FlightState.COMPLETED_EXCEPTIONALLY).all()
    assert flights.doubt.tolist() == [True] * 4 + [False] * 6
    assert isinstance(flights.errors[9], NotPublished)
    assert fixture.finished == [flights]
    assert conserved(publisher)
    with pytest.raises(ClientClosed):
        publisher.put(batch(1))


def test_a_closed_connection_ends_the_publisher_settles_all_and_fails_every_waiter(fixture: PublisherFixture) -> None:
    fixture.broker.then(["ack", "lose", "kill"])
    publisher = fixture.publisher()
    flights = publisher.put(batch(5))
    with pytest.raises(BackgroundTaskFailed) as caught:
        publisher.drain()
    assert isinstance(caught.value.__cause__, Unavailable)
    assert flights.open == 0
    assert fixture.finished == [flights]
    with pytest.raises(BackgroundTaskFailed):
        publisher.put(batch(1))


def test_an_error_in_on_finished_ends_the_publisher(fixture: PublisherFixture) -> None:
    def broken(flights: FlightBatch) -> None:
        raise OSError("disk full")

    publisher = fixture.publisher(on_finished=broken)
    publisher.put(batch(1))
    for wait in (publisher.wait_settled, publisher.drain):
        with pytest.raises(BackgroundTaskFailed, match="disk full"):
            wait()


def test_messages_of_a_send_that_raised_may_be_stored(fixture: PublisherFixture) -> None:
    class Raises(MemoryBridge):
        def send(self, batch: MessageBatch, first_token: int) -> int:
            super().send(batch.slice(0, 1), first_token)
            raise RuntimeError("no more")

    publisher = fixture.publisher(bridge=Raises(fixture.name))
    flights = publisher.put(batch(3))
    with pytest.raises(BackgroundTaskFailed, match="no more"):
        publisher.drain()
    assert len(fixture.broker.messages()) == 1
    assert flights.doubt.all()
    assert conserved(publisher)


def test_a_config_error_of_prepare_comes_out_as_itself(fixture: PublisherFixture) -> None:
    class NoStream(MemoryBridge):
        def prepare(self, batch: MessageBatch) -> object:  # type: ignore[override]
            raise ConfigError("no stream takes t.x")

    publisher = fixture.publisher(bridge=NoStream(fixture.name))
    flights = publisher.put(batch(3))
    with pytest.raises(ConfigError, match="no stream takes"):
        publisher.drain()
    assert (flights.state == FlightState.COMPLETED_EXCEPTIONALLY).all()


@pytest.mark.parametrize("on_outage", [OnOutage.FAIL, OnOutage.WAIT])
def test_a_middleware_that_cannot_say_its_limits_is_waited_for_where_outages_are(
    fixture: PublisherFixture, on_outage: OnOutage
) -> None:
    class SlowToAnswer(MemoryBridge):
        calls = 0

        def prepare(self, batch: MessageBatch) -> ValidationResult:
            self.calls += 1
            if self.calls == 1:
                raise Unavailable("nobody answers")
            return super().prepare(batch)

    bridge = SlowToAnswer(fixture.name)
    publisher = fixture.publisher(bridge=bridge, on_outage=on_outage)
    publisher.put(batch(10))
    if on_outage is OnOutage.WAIT:
        publisher.drain()
        assert (bridge.calls, publisher.counters.acked) == (2, 10)
    else:
        for wait in (publisher.drain, publisher.check):
            with pytest.raises(BackgroundTaskFailed, match="nobody answers"):
                wait()
    assert conserved(publisher)


@pytest.mark.parametrize(("up", "text"), [(True, "nothing was acknowledged"), (False, "takes no messages")])
def test_an_outage_beyond_its_timeout_ends_the_publisher_as_unavailable(
    fixture: PublisherFixture, up: bool, text: str
) -> None:
    fixture.broker.then(["503"] * 5000)
    publisher = fixture.publisher(WindowConfig(64, 0, retry=RetryPolicy(None, (0.01,), 0.2)), outage_timeout=0.3)
    fixture.broker.up = up
    publisher.put(batch(5000))
    with pytest.raises(BackgroundTaskFailed, match=text) as caught:
        publisher.drain()
    assert isinstance(caught.value.__cause__, Unavailable)
    assert conserved(publisher)


@pytest.mark.parametrize("fault", ["503", "drop"])
@pytest.mark.parametrize("on_outage", [OnOutage.FAIL_AT_GAP, OnOutage.WAIT_AT_GAP, OnOutage.FAIL])
def test_nothing_is_stored_behind_a_message_that_may_be_repeated(
    fixture: PublisherFixture, on_outage: OnOutage, fault: str
) -> None:
    one_by_one = WindowConfig(1, 0, wait_timeout=0.05, ordered=True, retry=RetryPolicy(2, (0.01,), None))
    fixture.broker.then(["ack", "ack", fault, fault, fault])
    publisher = fixture.publisher(replace(one_by_one, wait_timeout=60.0), on_outage=on_outage, outage_timeout=60.0)
    publisher.put(batch(2))
    publisher.wait_settled()
    publisher.window.policy = one_by_one
    publisher.put(batch(4, 2))
    behind = [3, 4, 5] if on_outage is OnOutage.FAIL else []
    if behind:
        publisher.drain()
    else:
        with pytest.raises(BackgroundTaskFailed, match="nothing may be stored behind it") as caught:
            publisher.drain()
        assert isinstance(caught.value.__cause__, Unavailable)
    assert [int(m.payload) for m in fixture.broker.messages()] == [0, 1, *behind]
    assert conserved(publisher)


def test_a_rejected_message_is_no_gap(fixture: PublisherFixture) -> None:
    fixture.broker.then(["ack", "reject"])
    publisher = fixture.publisher(WindowConfig(1, 0, ordered=True, retry=RETRY), on_outage=OnOutage.FAIL_AT_GAP)
    publisher.put(batch(4))
    publisher.drain()
    assert [int(m.payload) for m in fixture.broker.messages()] == [0, 2, 3]


def test_without_acknowledgements_published_is_terminal(fixture: PublisherFixture) -> None:
    publisher = fixture.publisher(bridge=MemoryBridge(fixture.name, acks=False))
    flights = publisher.put(batch(5000))
    publisher.drain()
    assert (flights.state == FlightState.PUBLISHED).all()
    assert publisher.counters.published == 5000
    assert len(fixture.broker.messages()) == 5000


def test_rate_limits_new_messages(fixture: PublisherFixture) -> None:
    publisher = fixture.publisher(rate=1000)
    began = time.monotonic()
    publisher.put(batch(400))
    publisher.drain()
    assert time.monotonic() - began >= 0.29, "a burst of 100, then 300 at 1000/s"


def test_drain_without_start_raises_instead_of_waiting() -> None:
    publisher = BatchPublisher(MemoryBridge(uuid4().hex), POLICY, on_finished=lambda b: None)
    with pytest.raises(ClientClosed):
        publisher.drain()
    publisher.stop()


def test_wall_clock_keeps_differences_when_the_clock_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = WallClock.anchored()
    now = time.monotonic()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    one, two, never = clock.micros(np.array([now, now + 1.5, np.nan])).tolist()
    assert two - one == 1_500_000
    assert never == NEVER
