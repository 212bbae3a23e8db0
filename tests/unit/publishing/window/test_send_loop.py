"""The loop that sends, what it sends again, and the call that waits for it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.contracts.bridge import BridgeEvent, EventKind, OnTheWay, PollResult, Refusals
from mama_spark.contracts.errors import (
    AckTimeout,
    BadRow,
    DuplicateInFlight,
    NoResponders,
    NotPublished,
    NotReady,
    OutcomeUnknown,
    PermissionDenied,
    PublishError,
    Rejected,
    Stopped,
    Unavailable,
)
from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.memory import MemoryBridge, MemoryBroker
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch, StoredFlights
from mama_spark.publishing.window.outage_detector import OutageDetector
from mama_spark.publishing.window.retry import is_final, may_resend, may_resend_elsewhere
from mama_spark.publishing.window.send_loop import MAX_SEND_BYTES, MAX_SEND_MESSAGES, SendLoop
from mama_spark.publishing.window.window import Window

from tests.support.tables import each

# --- the calls that a sender makes: bounded in messages and bytes, also when they are made again ----------------------

POLICY = WindowConfig(10_000, 5_000, 60.0, RetryPolicy(3, (0.0,)))


class Recording(MemoryBridge):
    """Notes the size of each call."""

    def __init__(self, name: str, most: int | None = None) -> None:
        super().__init__(name, max_payload=2 * MAX_SEND_BYTES)
        self.calls: list[tuple[int, int]] = []
        self.flushes = 0
        self.most = most

    def send(self, batch: MessageBatch, first_token: int) -> int:
        self.calls.append((len(batch), int(batch.sizes().sum())))
        return super().send(batch if self.most is None else batch.slice(0, self.most), first_token)

    def flush(self) -> None:
        self.flushes += 1


@pytest.fixture
def bridge() -> Iterator[Recording]:
    made = Recording(uuid4().hex)
    made.open()
    yield made
    made.close()
    MemoryBroker.forget(made.broker.name)


def loop_with(bridge: Recording, payloads: list[bytes], policy: WindowConfig = POLICY) -> tuple[SendLoop, FlightBatch]:
    loop = SendLoop(bridge, Window(policy))
    messages = MessageBatch.of(["t"] * len(payloads), payloads)
    return loop, loop.window.open(len(messages), messages)


def launch_all(loop: SendLoop, flights: FlightBatch) -> None:
    for start, end in loop.prepare(flights):
        at = start
        while at < end:
            n = loop.capacity(flights, (at, end))
            at += loop.launch(flights, at, n)


def refuse_all(loop: SendLoop, flights: FlightBatch) -> None:
    tokens = flights.token[flights.state == FlightState.IN_FLIGHT]
    loop.apply(PollResult(refusals=[Refusals(tokens, NotReady("later"), loop.clock())]))


def test_a_resend_is_cut_into_calls_like_a_first_send(bridge: Recording) -> None:
    big = MAX_SEND_BYTES // 2 - 1
    loop, flights = loop_with(bridge, [bytes(big)] * 4 + [bytes(MAX_SEND_BYTES + 5)] + [b"x"] * 5000)
    launch_all(loop, flights)
    first = list(bridge.calls)
    assert first[:3] == [(2, 2 * big), (2, 2 * big), (1, MAX_SEND_BYTES + 5)]
    assert [n for n, _ in first[3:]] == [MAX_SEND_MESSAGES, MAX_SEND_MESSAGES, 5000 - 2 * MAX_SEND_MESSAGES]
    bridge.calls.clear()
    refuse_all(loop, flights)
    loop.resend()
    assert bridge.calls == first
    assert (flights.sends == 2).all()
    assert not loop.bridge_full


def test_what_was_on_its_way_while_the_process_stood_still_has_time_left(
    bridge: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its answer was lost meanwhile, and all its deadlines have passed."""
    bridge.broker.then(["lose"])
    loop, flights = loop_with(bridge, [b"x"], WindowConfig(10, 5, 1.0, RetryPolicy(None, (0.0,), 10.0)))
    now = 100.0
    loop.clock = lambda: now
    launch_all(loop, flights)

    def stand_still(timeout: float, want: int = 1) -> PollResult:
        nonlocal now
        now += 600.0
        return PollResult()

    with monkeypatch.context() as patched:
        patched.setattr(bridge, "poll", stand_still)
        loop.receive(0.1)
    loop.receive(0.0)
    assert flights.state.tolist() == [FlightState.WAITING]
    loop.resend()
    loop.receive(0.0)
    assert flights.state.tolist() == [FlightState.ACKED]


def test_the_time_of_a_send_that_took_long_is_part_of_the_latency_but_not_of_the_deadlines(
    bridge: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bridge reads answers while it sends; the process may stand still meanwhile."""
    bridge.broker.then(["lose"])
    loop, flights = loop_with(bridge, [b"x", b"y"], WindowConfig(10, 5, 1.0, RetryPolicy(None, (0.0,), 10.0)))
    now, send = 100.0, bridge.send
    loop.clock = lambda: now

    def slow(batch: MessageBatch, first_token: int) -> int:
        nonlocal now
        now += 600.0
        return send(batch, first_token)

    with monkeypatch.context() as patched:
        patched.setattr(bridge, "send", slow)
        launch_all(loop, flights)
    assert flights.published.tolist() == [100.0, 100.0]
    now += 2.0
    loop.receive(0.0)
    assert flights.state.tolist() == [FlightState.WAITING, FlightState.ACKED]
    loop.resend()
    loop.receive(0.0)
    assert flights.state.tolist() == [FlightState.ACKED] * 2


def test_what_the_bridge_does_not_take_waits_and_is_tried_again(bridge: Recording) -> None:
    loop, flights = loop_with(bridge, [b"x"] * 10)
    bridge.most = 4
    assert loop.launch(flights, 0, 10) == 4
    assert loop.bridge_full
    assert loop.launch(flights, 4, 6) == 4
    bridge.most = None
    assert loop.launch(flights, 8, 2) == 2
    assert not loop.bridge_full
    refuse_all(loop, flights)
    bridge.most = 3
    loop.resend()
    assert loop.bridge_full
    assert (flights.sends == 2).sum() == 3
    bridge.most = None
    loop.resend()
    assert (flights.sends == 2).all()


def test_a_flush_follows_what_was_sent_once(bridge: Recording) -> None:
    loop, flights = loop_with(bridge, [b"x"] * 2)
    loop.flush()
    assert bridge.flushes == 0
    launch_all(loop, flights)
    loop.flush()
    loop.flush()
    assert bridge.flushes == 1


def test_events_reach_the_caller_then_the_window_and_the_log(
    bridge: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[EventKind, bool]] = []
    window = Window(POLICY)
    loop = SendLoop(
        bridge, window, on_event=lambda event: seen.append((event.kind, window.connected)), log_prefix="p: "
    )
    kinds = (EventKind.DISCONNECTED, EventKind.RECONNECTED, EventKind.WARNING)
    with caplog.at_level(logging.WARNING, "mama_spark"):
        loop.apply(PollResult(events=[BridgeEvent(kind, "info", 1.0, "a.b") for kind in kinds]))
    assert seen == [(kinds[0], True), (kinds[1], False), (kinds[2], True)]
    assert loop.last_cause == "info"
    texts = [r.getMessage() for r in caplog.records]
    assert texts == [f"p: {what}info (topic a.b)" for what in ("disconnected: ", "reconnected: ", "")]
    with pytest.raises(Unavailable, match="closed: gone"):
        loop.apply(PollResult(events=[BridgeEvent(EventKind.CLOSED, "gone", 2.0)]))


def test_an_outage_is_for_what_waits_while_the_bridge_is_full(bridge: Recording) -> None:
    loop = SendLoop(bridge, Window(POLICY), outage=OutageDetector(10.0, POLICY.wait_timeout))
    loop.bridge_full = True
    assert not any(loop.outage_lasts_too_long(True, float(now)) for now in range(11))
    assert not loop.outage_lasts_too_long(False, 11.0), "nothing waits: the time begins anew"
    assert not any(loop.outage_lasts_too_long(True, float(now)) for now in range(12, 23))
    assert loop.outage_lasts_too_long(True, 23.0)


# --- whether a message is sent again, by its error alone --------------------------------------------------------------


@each(
    ("error", "repeatable", "not_repeatable"),
    [
        (Rejected("no"), False, False),
        (NoResponders("nobody"), True, True),
        (DuplicateInFlight("409"), True, False),
        (AckTimeout("late"), True, False),
        (Stopped("stopped"), False, False),
        (Unavailable("away"), True, True),
    ],
)
def test_a_copy_that_may_be_stored_needs_an_id(error: PublishError, repeatable: bool, not_repeatable: bool) -> None:
    assert may_resend(error) is repeatable
    assert may_resend(error, repeatable=False) is not_repeatable


def test_the_user_decides_which_errors_are_worth_it_but_not_what_is_safe() -> None:
    assert may_resend(Rejected("no"), retry_on=lambda e: True)
    assert not may_resend(NoResponders("nobody"), retry_on=lambda e: False)
    assert not may_resend(AckTimeout("late"), repeatable=False, retry_on=lambda e: True)


def test_the_next_publisher_takes_what_the_last_one_left() -> None:
    assert may_resend_elsewhere(Stopped("stopped"))
    assert may_resend_elsewhere(NotPublished("stopped"))
    assert not may_resend_elsewhere(Rejected("no"))


def test_final_is_what_was_rejected_and_is_not_stored() -> None:
    assert all(map(is_final, (Rejected("no"), PermissionDenied("no"), BadRow("null"))))
    unsure = (AckTimeout("late"), OutcomeUnknown("lost"), DuplicateInFlight("409"))
    assert not any(map(is_final, (Stopped("s"), NoResponders("nobody"), *unsure)))


# --- with a check: what may be stored is looked for, and not before all copies are stored or lost ---------------------


class Fenced(Recording):
    """Its sends below ``certain`` are stored or lost."""

    certain, since = 0, 100.0

    def on_the_way(self, tokens: Int64s, topics: pa.DictionaryArray) -> OnTheWay | None:
        there = tokens >= self.certain
        return OnTheWay(there, self.since, "server 'a' is silent") if there.any() else None


class Looking:
    """Notes what is looked for, and finds some of it."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.looks: list[tuple[list[bytes], float]] = []
        self.has: list[bytes] = []

    def stored(self, batches: Sequence[MessageBatch], since: float) -> list[list[StoredFlights]]:
        payloads = [messages.payloads.to_pylist() for messages in batches]
        self.looks.append(([payload for some in payloads for payload in some], since))
        found = [np.array([row for row, one in enumerate(some) if one in self.has], np.int64) for some in payloads]
        return [[StoredFlights("S", rows, rows + 1)] if len(rows) else [] for rows in found]


class Doubting:
    """Ten messages in a window of four, of which the answers to the first four are lost; the time is given."""

    def __init__(
        self, patience: float = math.inf, *, patient: bool = False, policy: WindowConfig | None = None
    ) -> None:
        self.bridge, self.check, self.now = Fenced(uuid4().hex), Looking(patience), 100.0
        self.bridge.open()
        self.bridge.broker.then(["lose"] * 4)
        policy = policy or WindowConfig(4, 2, 1.0, RetryPolicy(None, (0.0,), 10.0))
        self.window = Window(policy)
        self.window.resends.patient = patient
        self.loop = SendLoop(self.bridge, self.window, check=self.check, clock=lambda: self.now)
        messages = MessageBatch.of(["t"] * 10, [b"%d" % n for n in range(10)])
        self.flights = self.window.open(10, messages)
        self.spans = self.loop.prepare(self.flights)
        self.round()
        self.later(1.0)  # their time is up

    def round(self) -> None:
        self.loop.resend()
        self.loop.launch_spans(self.flights, self.spans)
        self.loop.receive(0.0)

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.round()
        self.round()

    @property
    def sends(self) -> list[int]:
        return [int(n) for n in self.flights.sends]


def test_what_may_be_on_its_way_waits_and_others_go_in_its_place() -> None:
    one = Doubting()
    one.later(0.5)
    one.later(0.5)
    assert one.sends == [1] * 10
    assert one.window.counters.acked == 6
    assert not one.check.looks
    assert one.loop.last_cause == "server 'a' is silent"
    one.bridge.certain, one.check.has = 3, [b"1"]
    one.now += 0.5
    one.loop.resend()
    assert one.sends == [1] * 10, "whether it may be sent is asked again after a look"
    one.later(0.0)
    assert one.check.looks == [([b"0", b"1", b"2"], 100.0)]
    assert one.sends == [2, 1, 2, 1, *[1] * 6]
    assert one.flights.duplicate.tolist() == [False, True, *[False] * 8]
    one.bridge.certain = 4
    one.later(0.5)
    assert [row for rows, _ in one.check.looks[1:] for row in rows] == [b"3"], "none is looked for twice"
    assert one.window.counters.acked == 10
    assert one.flights.copied is None


def test_what_waits_for_a_silent_server_ends_at_the_deadline_and_not_where_outages_are_waited_for() -> None:
    for patient in (False, True):
        one = Doubting(patient=patient)
        for _ in range(40):
            one.later(0.5)
        assert one.window.counters.timed_out == (0 if patient else 4)
        assert one.window.counters.in_doubt == one.window.counters.timed_out
        if not patient:
            assert "server 'a' is silent" in str(one.flights.errors[0])
            continue
        one.bridge.certain = 100
        one.later(0.5)
        assert one.window.counters.acked == 10


def test_who_does_not_wait_marks_what_is_sent_again() -> None:
    one = Doubting(patience=5.0)
    one.check.has = [b"2"]
    one.later(2.0)
    assert one.sends[:4] == [1] * 4
    one.later(3.0)
    assert one.sends[:4] == [2, 2, 1, 2]
    assert one.flights.perhaps_twice().tolist() == [True, True, False, True] + [False] * 6, "one of them was found"


def test_in_order_all_wait_for_what_may_be_on_its_way() -> None:
    one = Doubting(policy=WindowConfig(4, 2, 1.0, RetryPolicy(None, (0.0,), 100.0), ordered=True))
    one.later(0.5)
    assert one.sends == [1] * 4 + [0] * 6
    one.bridge.certain = 4
    one.later(0.5)
    one.later(0.5)
    assert one.window.counters.acked == 10
