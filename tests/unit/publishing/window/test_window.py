"""The window under scripted outcomes: conservation, bounds, deadlines, order; a million sends where there is time."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from mama_spark.contracts.bridge import Ack, Acks, Refusals
from mama_spark.contracts.errors import (
    BlockedByPredecessor,
    DuplicateInFlight,
    NoResponders,
    PublishError,
    RateLimited,
    Rejected,
)
from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.window.flight import TABLE, FlightState, IllegalFlightStep, Transition, advance
from mama_spark.publishing.window.flight_batch import FlightBatch, Rows
from mama_spark.publishing.window.rate_limiter import RateLimiter
from mama_spark.publishing.window.window import PROBE, Window

from tests.support.publishing.windows import ack, due, launched, refuse
from tests.support.tables import each
from tests.support.tiers import EXPLORE

WORDS = ["ack", "lose", "503", "429", "409", "late", "dup-ack", "reject", "unknown-token", "disconnect"]
ERRORS: dict[str, PublishError] = {
    "503": NoResponders("x", 503), "429": RateLimited("x", 429), "409": DuplicateInFlight("x"), "reject": Rejected("x"),
}  # fmt: skip


@each("state", FlightState)
@each("step", Transition)
def test_a_step_that_is_not_in_the_table_raises(state: FlightState, step: Transition) -> None:
    column = np.array([state, state], np.uint8)
    if step in TABLE[state]:
        assert advance(column, step).tolist() == [TABLE[state][step]] * 2
    else:
        with pytest.raises(IllegalFlightStep):
            advance(column, step)


TERMINAL = {state for state, steps in TABLE.items() if not steps}


def under_way(flights: FlightBatch) -> int:
    """How many flights of a batch were launched and are not settled."""
    return int(np.count_nonzero((flights.state == FlightState.IN_FLIGHT) | (flights.state == FlightState.WAITING)))


class Driver:
    """A shell with a clock of its own and a server that answers by chance, in whole runs."""

    def __init__(self, policy: WindowConfig, seed: int, weights: list[float], sizes: int = 10) -> None:
        self.window, self.policy = Window(policy), policy
        self.rng = np.random.default_rng(seed)
        self.weights, self.size = weights, sizes
        self.now = 100.0
        self.late: deque[tuple[float, Int64s]] = deque()
        self.answers: list[tuple[str, Int64s]] = []
        self.terminal: dict[int, np.ndarray] = {}
        self.batches: list[FlightBatch] = []
        self.begun: list[FlightBatch] = []  # something of them was launched, and not all is settled
        self.last_token = -1
        self.order: list[int] = []

    def sent(self, first: int, n: int) -> None:
        assert first > self.last_token, "a token is never used twice"
        self.last_token = first + n - 1
        words = self.rng.choice(len(WORDS), n, p=self.weights)
        for word in np.unique(words):
            self.answers.append((WORDS[word], first + np.flatnonzero(words == word)))

    def answer(self) -> None:
        answers, self.answers = self.answers, []
        for word, tokens in answers:
            if word in ("ack", "dup-ack"):
                self.ack(tokens)
                if word == "dup-ack":
                    self.ack(np.concatenate([tokens, tokens[:1]]))
            elif word == "late":
                self.late.append((self.now + 3 * self.policy.wait_timeout, tokens))
            elif word == "unknown-token":
                before = self.window.counters.unknown
                self.ack(tokens + (1 << 50))
                assert self.window.counters.unknown == before + len(tokens)
            elif word == "disconnect":
                self.window.disconnected("cut", self.now)
                assert not list(self.window.due(self.now))
                self.now += 0.01
                self.window.reconnected(self.now)
            elif word != "lose":
                self.window.refused(Refusals(tokens, ERRORS[word], self.now))
        while self.late and self.late[0][0] <= self.now:
            self.ack(self.late.popleft()[1])

    def ack(self, tokens: Int64s) -> None:
        self.window.acked(Acks(tokens, tokens * 2, None, "S", self.now))

    def check(self) -> None:
        window, policy = self.window, self.policy
        assert 0 <= window.in_flight <= policy.max_in_flight
        assert policy.max_bytes is None or window.bytes_in_flight <= max(policy.max_bytes, self.size)
        assert 1 <= window._backpressure.limit <= policy.max_in_flight
        for flights, rows in window.take_settled():
            counts = self.terminal.setdefault(id(flights), np.zeros(flights.n, np.int64))
            counts[rows] += 1
            assert (flights.state[rows] >= min(TERMINAL)).all()
        self.begun = [b for b in self.begun if b.open]
        assert window.in_flight == sum(map(under_way, self.begun))

    def run(self, batches: int, n: int) -> None:
        todo: deque[tuple[FlightBatch, int]] = deque()
        messages = MessageBatch.of(["t"] * n, [bytes(self.size)] * n)
        for i in range(batches):
            flights = self.window.open(n, messages)
            flights.non_retriable = self.rng.random(n) < 0.1 if i % 2 else None
            self.batches.append(flights)
            todo.append((flights, 0))
        turns = 0
        while any(b.open for b in self.batches):
            turns += 1
            assert turns < 200_000, f"no progress: {self.window!r}"
            for flights, rows in self.window.due(self.now):
                assert (flights.state[rows] == FlightState.WAITING).all()
                take = rows[: int(self.rng.integers(0, len(rows) + 1))] if self.rng.random() < 0.1 else rows
                if len(take):
                    self.sent(self.window.relaunch(flights, take, self.now), len(take))
                if len(take) < len(rows):
                    break
            while todo:
                flights, start = todo[0]
                room = self.window.capacity(flights, start, self.now)
                if not room:
                    break
                assert not self.window.holding
                assert self.window.in_flight + room <= self.window._backpressure.limit
                if start == 0:
                    self.begun.append(flights)
                self.sent(self.window.launch(flights, slice(start, start + room), self.now), room)
                todo[0] = (flights, start + room)
                if start + room == n:
                    todo.popleft()
            self.check()
            self.answer()
            wake = self.window.wake_at()
            self.now = max(self.now + 0.001, wake if wake is not None and not self.answers else 0.0)
            self.window.expire(self.now)
            self.check()

    def conserved(self) -> None:
        c = self.window.counters
        assert c.opened == c.acked + c.failed + c.timed_out + c.published == sum(b.n for b in self.batches)
        assert all((self.terminal[id(b)] == 1).all() for b in self.batches), "one terminal event a flight"
        assert self.window.in_flight == self.window.bytes_in_flight == 0
        assert c.sends == sum(int(b.sends.sum()) for b in self.batches)


RETRY = RetryPolicy(None, (0.05, 0.2), 3.0)
CASES = [
    (WindowConfig(1), 3, 100),
    (WindowConfig(50, 0), 5, 1000),
    (WindowConfig(64, 32, 0.5, RETRY), 10, 2000),
    (WindowConfig(4096, 2048, 1.0, RETRY), 30, 10_000),
    (WindowConfig(1024, 1000, 1.0, RetryPolicy(2)), 10, 10_000),
    (WindowConfig(256, 16, 0.3, RETRY, resend_uncertain=False), 10, 5000),
    (WindowConfig(128, 0, 0.3, RETRY, ordered=True), 5, 500),
    (WindowConfig(512, 64, 0.5, RETRY, max_bytes=1000), 5, 2000),
    (WindowConfig(512, 64, 0.5, RETRY, max_bytes=3), 2, 300),
]


@each("weights", ["calm", "rough", "wild"])
@each("case", range(len(CASES)))
def test_any_outcomes_conserve_every_flight(case: int, weights: str) -> None:
    policy, batches, n = CASES[case]
    bad = {"calm": 0.001, "rough": 0.01, "wild": 0.08}[weights]
    p = [1 - bad * 9, *[bad] * 8, bad]
    n = max(1, n // (10 if weights == "wild" else 1) // (1 if EXPLORE else 12))
    driver = Driver(policy, case, p)
    driver.run(batches, n)
    driver.conserved()
    retry = policy.retry
    for flights in driver.batches:
        sent = flights.sends > 0
        life = flights.settled[sent] - flights.published[sent]
        if retry is None:
            assert (flights.sends <= 1).all()
            assert (life <= policy.wait_timeout + 0.02).all(), "n lost answers cost one time-out"
        elif retry.attempts is not None:
            assert (flights.sends <= retry.attempts + 1).all()
        if retry is not None and retry.deadline is not None:
            assert (life <= retry.deadline + policy.wait_timeout + 0.05).all(), "a flight settles in its deadline"
        if not policy.resend_uncertain:
            assert not (flights.doubt & (flights.state == FlightState.ACKED) & (flights.sends > 1)).any()
        if flights.non_retriable is not None:
            assert not (
                flights.non_retriable & flights.doubt & (flights.state == FlightState.ACKED) & (flights.sends > 1)
            ).any()


@pytest.mark.spec("MP-05")
def test_mp_34_hold_begins_at_max_in_flight_and_mp_43_ends_at_the_refill_mark() -> None:
    window, flights = launched(WindowConfig(10, 4), 30)
    assert window.in_flight == 10
    assert window.holding
    ack(window, [0, 1, 2, 3, 4])
    assert window.holding
    assert window.capacity(flights, 10, 0.0) == 0
    ack(window, [5])
    assert not window.holding
    assert window.capacity(flights, 10, 0.0) == 6


def test_mp_41_the_timeout_runs_per_send_without_any_answer() -> None:
    window, flights = launched(WindowConfig(10, 0, wait_timeout=5), 10)
    window.expire(4.99)
    assert flights.open == 10
    assert window.wake_at() == 5
    window.expire(5.0)
    assert (flights.state == FlightState.TIMEOUT).all()
    assert not window.holding, "a timed out flight frees its place"
    ack(window, [0])
    assert window.counters.late + window.counters.unknown == 1
    assert window.counters.acked == 0


def test_an_ack_of_an_earlier_send_settles_and_a_refusal_of_it_does_not() -> None:
    policy = WindowConfig(10, 0, 1.0, RetryPolicy(5))
    for word in ("ack", "refuse"):
        window, flights = launched(policy, 1)
        window.expire(1.0)
        ((_, rows),) = list(window.due(1.0))
        second = window.relaunch(flights, rows, 1.0)
        if word == "ack":
            ack(window, [0], 1.1)
            assert flights.state[0] == FlightState.ACKED
        else:
            refuse(window, [0], Rejected("old"), 1.1)
            assert flights.state[0] == FlightState.IN_FLIGHT
            assert window.counters.late == 1
        assert second == 1


def test_what_will_never_be_acknowledged_ends_as_published() -> None:
    window = Window(WindowConfig(10, 5))
    flights = window.open(3, MessageBatch.of(["t"] * 3, [b"x"] * 3))
    window.launch(flights, slice(0, 3), 0.0)
    window.acked(Acks(np.array([0, 2]), None, None, None, 1.0, level=Ack.NONE))
    window.acked(Acks(np.array([1, 2]), None, None, None, 1.0))
    assert flights.state.tolist() == [FlightState.PUBLISHED, FlightState.ACKED, FlightState.PUBLISHED]
    assert (window.counters.published, window.counters.acked, window.counters.late, window.in_flight) == (2, 1, 1, 0)


def test_an_answer_that_none_will_come_also_settles_what_waits_for_its_resend() -> None:
    window, flights = launched(WindowConfig(10, 5, 1.0, RetryPolicy(5, (1.0,))), 2)
    window.expire(1.0)
    window.acked(Acks(np.array([0]), None, None, None, 1.1, level=Ack.NONE))
    assert flights.state.tolist() == [FlightState.PUBLISHED, FlightState.WAITING]
    assert due(window, 9.0) == [1], "and it is not sent again"
    assert (window.counters.published, window.in_flight) == (1, 1)


def test_429_halves_the_window_once_a_burst_and_acks_grow_it_again() -> None:
    window, flights = launched(WindowConfig(1024, 512, 5, RETRY), 20_000)
    refuse(window, list(range(100)), RateLimited("slow", 429), 0.1)
    refuse(window, list(range(100, 200)), RateLimited("slow", 429), 0.1)
    assert window._backpressure.limit == 512
    assert window.paused
    assert not list(window.due(0.1)), "the whole publisher holds"
    now, sent = 0.2, 0
    ack(window, list(range(200, 1024)), now)
    start = 1024
    while window._backpressure.limit < 1024:
        for b, rows in window.due(now):
            first = window.relaunch(b, rows, now)
            ack(window, list(range(first, first + len(rows))), now)
        room = window.capacity(flights, start, now)
        assert room <= window._backpressure.limit
        first = window.launch(flights, slice(start, start + room), now)
        ack(window, list(range(first, first + room)), now)
        start, now, sent = start + room, now + 0.1, sent + room
    assert not window.paused


def test_after_a_hold_only_probes_go_until_one_is_answered() -> None:
    window, flights = launched(WindowConfig(1024, 512, 5, RETRY), 2000)
    refuse(window, list(range(1024)), NoResponders("x"), 0.1)
    assert len(due(window, 0.5)) == PROBE
    assert window.capacity(flights, 1024, 0.5) == 0
    assert not list(window.due(0.6))
    wake = window.wake_at()
    assert wake is not None
    assert wake > 0.6, "while probes are out there is nothing to wake for at once"


def test_non_retriable_flights_are_never_resent_in_doubt_but_are_after_a_clean_refusal() -> None:
    non_retriable = np.array([True, False])
    window, flights = launched(WindowConfig(4, 0, 1.0, RETRY), 2, non_retriable=non_retriable)
    window.expire(1.0)
    assert flights.state.tolist() == [FlightState.TIMEOUT, FlightState.WAITING]
    window, flights = launched(WindowConfig(4, 0, 1.0, RETRY), 2, non_retriable=non_retriable)
    refuse(window, [0, 1], NoResponders("x"), 0.1)
    assert flights.state.tolist() == [FlightState.WAITING] * 2


def test_a_waiting_flight_settles_although_the_connection_never_comes_back() -> None:
    window, flights = launched(WindowConfig(4, 0, 1.0, RetryPolicy(3)), 2)
    window.disconnected("cut", 0.1)
    for _ in range(10):
        wake = window.wake_at()
        if wake is None:
            break
        window.expire(wake)
    assert (flights.state == FlightState.TIMEOUT).all()


def test_a_pause_without_anything_waiting_is_no_reason_to_wake_in_the_past() -> None:
    window, flights = launched(WindowConfig(200, 0, 5.0), 200)
    refuse(window, [0], NoResponders("x"), 0.1)
    room = window.capacity(flights, 0, 0.2)
    assert room == 0
    assert window.counters.failed == 1


def test_ordered_resends_go_in_order_and_before_anything_new() -> None:
    window = Window(WindowConfig(100, 0, 5.0, RETRY, ordered=True))
    one, two = window.open(10), window.open(10)
    window.launch(one, slice(0, 10), 0.0)
    window.launch(two, slice(0, 5), 0.0)
    refuse(window, list(range(3, 10)), BlockedByPredecessor("gap"), 0.1)
    assert not list(window.due(0.1)), "answers are still to come"
    assert window.capacity(two, 5, 0.1) == 0
    refuse(window, list(range(10, 15)), BlockedByPredecessor("gap"), 0.2)
    ack(window, [0, 1, 2], 0.2)
    went: list[tuple[FlightBatch, Rows]] = []
    for flights, rows in window.due(0.2):
        window.relaunch(flights, rows, 0.2)
        went.append((flights, rows))
    assert [(b, r.tolist()) for b, r in went if not isinstance(r, slice)] == [
        (one, list(range(3, 10))),
        (two, list(range(5))),
    ]
    assert window.capacity(two, 5, 0.3) == 5


def test_ordered_resends_keep_the_order_of_first_sends_between_which_the_clock_did_not_move() -> None:
    window = Window(WindowConfig(100, 0, 5.0, RETRY, ordered=True))
    one, two = window.open(2), window.open(2)
    window.launch(one, slice(0, 2), 0.0)
    window.launch(two, slice(0, 2), 0.0)
    refuse(window, [0, 1, 2, 3], BlockedByPredecessor("gap"), 0.1)
    window.relaunch(one, next(window.due(0.1))[1], 0.1)
    refuse(window, [4, 5], BlockedByPredecessor("gap"), 0.2)
    assert next(window.due(0.2))[0] is one


def test_queued_flights_rejected_by_slice_or_array_do_not_touch_the_window() -> None:
    window = Window(WindowConfig(10))
    flights = window.open(4)
    window.reject(flights, np.array([0, 2]), [Rejected("a"), Rejected("b")], 1.0)
    window.send_unacknowledged(flights, slice(1, 2), 1.0)
    window.send_unacknowledged(flights, slice(3, 4), 1.0)
    assert window.in_flight == 0
    assert flights.open == 0
    assert flights.errors[2].info == "b"


def test_one_stuck_flight_does_not_keep_all_later_ranges() -> None:
    window = Window(WindowConfig(1000, 0, 1e9))
    stuck = window.open(1)
    window.launch(stuck, slice(0, 1), 0.0)
    for i in range(1000):
        flights = window.open(10)
        first = window.launch(flights, slice(0, 10), float(i))
        ack(window, list(range(first, first + 10)), float(i))
    assert len(window._index) < 300


def test_rate_limiter_gives_its_rate_and_ignores_a_clock_that_jumps_back() -> None:
    limiter = RateLimiter(100, 0.0)
    total, now = 0, 0.0
    while now < 10:
        n = limiter.allowance(now)
        limiter.spend(n)
        total += n
        assert limiter.allowance(now - 5) == limiter.allowance(now)
        now = max(now + 0.001, limiter.wake_at(now))
    assert 990 <= total <= 1011


def test_more_streams_than_fit_into_two_bytes_are_told_apart() -> None:
    n = 40_000
    window = Window(WindowConfig(max_in_flight=n + 1, refill_allowed_at=n))
    flights = window.open(n)
    first = window.launch(flights, slice(0, n), 0.0)
    for row in (0, 1, n - 2, n - 1):
        window.acked(Acks(np.array([first + row]), None, None, f"s{row}", 0.1))
    for number in range(n):
        window._stream_index(f"s{number}")
    window.acked(Acks(np.array([first + 2]), None, None, f"s{n - 3}", 0.1))
    found = [window.streams[flights.stream[row]] for row in (0, 1, 2, n - 2, n - 1)]
    assert found == ["s0", "s1", f"s{n - 3}", f"s{n - 2}", f"s{n - 1}"]
