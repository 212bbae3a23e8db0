"""When a flight goes again, and when it does not any more. Time is what the test says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mama_spark.contracts.errors import (
    ConfigError,
    DuplicateInFlight,
    NoResponders,
    NotReady,
    OutcomeUnknown,
    PublishError,
    Rejected,
)
from mama_spark.contracts.message import MessageBatch
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.rate_limiter import RateLimiter
from mama_spark.publishing.window.window import PROBE, Window

from tests.support.publishing.windows import ack, due, launched, refuse

BACKOFFS = (1.0, 2.0, 4.0)


def test_each_resend_waits_its_back_off_and_the_last_one_repeats() -> None:
    window, flights = launched(WindowConfig(4, 0, 60.0, RetryPolicy(10, BACKOFFS)), 1)
    now = 0.0
    for token, wait in enumerate((1.0, 2.0, 4.0, 4.0)):
        refuse(window, [token], NotReady("later"), now)
        assert due(window, now + wait - 0.01) == []
        now += wait
        assert due(window, now) == [0]
        assert flights.stored_from(np.array([0])) == now, "what was refused is not stored"


def test_what_nobody_answered_goes_at_once_the_first_time_and_then_slower() -> None:
    window, flights = launched(WindowConfig(4, 0, 1.0, RetryPolicy(10, BACKOFFS)), 1)
    window.expire(0.99)
    assert flights.state[0] == FlightState.IN_FLIGHT
    window.expire(1.0)
    assert due(window, 1.0) == [0]
    window.expire(2.0)
    assert due(window, 2.9) == []
    assert due(window, 3.0) == [0]


def test_a_hold_of_the_whole_publisher_grows_with_each_refusal() -> None:
    window, _ = launched(WindowConfig(4, 0, 60.0, RetryPolicy(10, BACKOFFS)), 1)
    now = 0.0
    for token, wait in enumerate(BACKOFFS):
        refuse(window, [token], NoResponders("no leader"), now)
        assert due(window, now + wait - 0.01) == []
        now += wait
        assert due(window, now) == [0]


@given(st.floats(0, 3600), st.floats(0, 86400))
@example(0.25, 3.0)  # the defaults of retryBackoff and retryMaxBackoff
@example(0.0, 0.0)
@example(5.0, 1.0)
def test_delays_double_exactly_from_the_first_to_the_longest(first: float, longest: float) -> None:
    doubled = [max(first, 0.001)]
    while doubled[-1] < longest:
        doubled.append(min(doubled[-1] * 2, longest))
    policy = RetryPolicy.doubling(first, longest, 60.0)
    assert policy.backoffs == tuple(doubled)
    assert [policy.backoff(n) for n in range(1, len(doubled) + 3)] == [*doubled, doubled[-1], doubled[-1]]


def test_the_deadline_counts_from_the_first_send() -> None:
    window, flights = launched(WindowConfig(4, 0, 60.0, RetryPolicy(None, (0.0,), deadline=10.0)), 1)
    for token, now in enumerate((3.0, 6.0, 9.0)):
        refuse(window, [token], NotReady("later"), now)
        assert due(window, now) == [0]
    refuse(window, [3], NotReady("later"), 10.5)
    assert flights.state[0] == FlightState.COMPLETED_EXCEPTIONALLY
    assert window.in_flight == 0


def test_attempts_are_resends() -> None:
    window, flights = launched(WindowConfig(4, 0, 60.0, RetryPolicy(2, (0.0,))), 1)
    for token in range(2):
        refuse(window, [token], NotReady("later"), 1.0)
        assert due(window, 1.0) == [0]
    refuse(window, [2], NotReady("later"), 1.0)
    assert flights.state[0] == FlightState.COMPLETED_EXCEPTIONALLY
    assert flights.sends[0] == 3


def test_an_acknowledgement_settles_a_flight_that_waits_to_go_again() -> None:
    window, flights = launched(WindowConfig(4, 0, 1.0, RetryPolicy(10, BACKOFFS)), 1)
    window.expire(1.0)
    assert flights.state[0] == FlightState.WAITING
    ack(window, [0], 1.1)
    assert flights.state[0] == FlightState.ACKED
    assert due(window, 9.0) == []


@pytest.mark.parametrize("error", [DuplicateInFlight("409"), OutcomeUnknown("lost")])
def test_what_may_be_stored_is_not_sent_again_where_it_shall_be_reported(error: PublishError) -> None:
    window, flights = launched(WindowConfig(4, 0, 60.0, RetryPolicy(10, (0.0,)), resend_uncertain=False), 1)
    refuse(window, [0], error, 1.0)
    assert due(window, 9.0) == []
    assert flights.open == 0
    assert flights.doubt[0]


def test_the_bytes_of_what_is_settled_may_be_in_flight_again() -> None:
    window = Window(WindowConfig(8, 7, max_bytes=100))
    flights = window.open(8, MessageBatch.of(["t"] * 8, [bytes(40)] * 8))
    assert window.capacity(flights, 0, 0.0) == 2
    window.launch(flights, slice(0, 2), 0.0)
    assert window.capacity(flights, 2, 0.0) == 0
    ack(window, [0, 1], 0.1)
    assert window.bytes_in_flight == 0
    assert window.capacity(flights, 2, 0.2) == 2


def test_nothing_goes_while_the_connection_is_lost_and_a_hold_ends_with_the_outage() -> None:
    window, flights = launched(WindowConfig(8, 7, 60.0, RetryPolicy(10, (30.0,))), 1)
    refuse(window, [0], NoResponders("no leader"), 0.0)
    window.disconnected("cut", 1.0)
    assert due(window, 2.0) == []
    assert window.capacity(flights, 1, 2.0) == 0
    window.reconnected(3.0)
    assert window.wake_at() is not None
    assert window.capacity(window.open(4), 0, 3.0) > 0


def test_a_publisher_that_idled_sends_a_burst_and_no_more() -> None:
    limiter = RateLimiter(100.0, 0.0)
    assert limiter.allowance(0.0) == limiter.allowance(1_000.0) == 10


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_rate_must_be_positive(rate: float) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        RateLimiter(rate, 0.0)


def test_what_became_of_each_flight_is_counted() -> None:
    window, _ = launched(WindowConfig(8, 0, 1.0), 4)
    ack(window, [0], 0.5)
    refuse(window, [1, 2], Rejected("no"), 0.5)
    window.expire(1.0)
    counters = window.counters
    assert (counters.acked, counters.failed, counters.timed_out) == (1, 2, 1)


def test_of_new_messages_only_probes_go_after_a_hold() -> None:
    window, _ = launched(WindowConfig(1024, 512, 60.0), 1)
    refuse(window, [0], NoResponders("no leader"), 1.0)
    fresh = window.open(1024)
    assert window.capacity(fresh, 0, 2.0) == PROBE
    window.launch(fresh, slice(0, PROBE), 2.0)
    assert window.capacity(fresh, PROBE, 2.0) == 0
    ack(window, [1], 2.1)
    assert window.capacity(fresh, PROBE, 2.2) == 1024 - PROBE


def test_in_order_nothing_new_goes_in_front_of_what_still_waits_for_its_back_off() -> None:
    window, _ = launched(WindowConfig(8, 7, 60.0, RetryPolicy(10, (5.0,)), ordered=True), 1)
    refuse(window, [0], DuplicateInFlight("409"), 1.0)
    fresh = window.open(2)
    assert window.capacity(fresh, 0, 2.0) == 0
    assert due(window, 6.0) == [0]
    assert window.capacity(fresh, 0, 6.0) == 2
