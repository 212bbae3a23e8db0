"""When an outage begins and ends, and what backpressure leaves of the window."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import NoResponders, PublishError, RateLimited
from mama_spark.contracts.standstill import MAX_STEP
from mama_spark.publishing.window.outage_detector import OutageDetector
from mama_spark.publishing.window.window import BackpressureState

from tests.support.tables import each

# When an outage is noticed, declared and over: checks as a sender makes them, at times that the test gives

TIMEOUT, NOTICE = 10.0, 4.0


def checked(outage: OutageDetector, since: float, until: float, *, blocked: bool = False, in_flight: int = 1) -> bool:
    """Check twice a second; the last result."""
    result = False
    for half in range(round(2 * since), round(2 * until) + 1):
        result = outage.check(blocked, in_flight, half / 2)
    return result


@each(
    ("until", "noticed", "declared"),
    [(NOTICE, False, False), (NOTICE + 0.5, True, False), (TIMEOUT, True, False), (TIMEOUT + 0.5, True, True)],
)
def test_waiting_messages_are_an_outage_after_the_timeout_whatever_is_in_flight(
    until: float, noticed: bool, declared: bool
) -> None:
    outage = OutageDetector(TIMEOUT, NOTICE)
    assert checked(outage, 0, until) is declared
    assert (outage.noticed, outage.declared) == (noticed, declared)


def test_where_nothing_waits_no_time_counts() -> None:
    outage = OutageDetector(TIMEOUT, NOTICE)
    assert not checked(outage, 0, 99, in_flight=0)
    assert not checked(outage, 99, 99 + TIMEOUT)
    assert outage.check(False, 1, 99.5 + TIMEOUT)


def test_a_window_that_timed_out_whole_is_no_end_of_the_silence_while_more_is_queued() -> None:
    outage = OutageDetector(TIMEOUT, NOTICE)
    assert not checked(outage, 0, TIMEOUT)
    assert not outage.check(False, 0, TIMEOUT, queued=True)
    assert outage.silent == TIMEOUT
    assert not outage.check(False, 1, TIMEOUT, queued=True)
    assert outage.check(False, 1, TIMEOUT + 0.5, queued=True)


def test_progress_ends_the_outage_and_the_time_begins_anew() -> None:
    outage = OutageDetector(TIMEOUT, NOTICE)
    assert checked(outage, 0, TIMEOUT + 0.5)
    outage.progressed()
    assert not outage.noticed
    assert not checked(outage, 11, 10.5 + TIMEOUT)
    assert outage.check(False, 1, 11 + TIMEOUT)


def test_a_declared_outage_stays_one_for_what_comes() -> None:
    outage = OutageDetector(TIMEOUT, NOTICE)
    assert checked(outage, 0, TIMEOUT + 0.5)
    assert not checked(outage, 11, 12, in_flight=0)
    assert outage.check(True, 0, 12.5), "the middleware takes nothing"
    assert not checked(outage, 13, 13 + NOTICE - 0.5, in_flight=1), "what it takes may be answered"
    assert checked(outage, 13 + NOTICE, 14 + NOTICE, in_flight=1)


def test_after_a_reconnect_an_answer_may_take_its_time_but_no_longer() -> None:
    outage = OutageDetector(TIMEOUT, NOTICE)
    assert checked(outage, 0, TIMEOUT + 0.5)
    outage.reconnected()
    assert not checked(outage, 11, 10 + NOTICE)
    assert outage.check(False, 1, 10.5 + NOTICE)


def test_a_process_that_stood_still_has_not_waited() -> None:
    outage = OutageDetector(TIMEOUT, NOTICE)
    checked(outage, 0, 1)
    assert not outage.check(True, 0, 600.0)
    assert outage.silent == 1 + MAX_STEP


# --- pauses of a publisher and the size of its window, error by error -------------------------------------------------


@pytest.mark.parametrize(
    ("error", "limits"),
    [(NoResponders("no leader"), [100, 100]), (RateLimited("429"), [50, 25])],
    ids=["a pause", "a pause and a smaller window"],
)
def test_each_pause_raises_the_level_and_an_overload_halves_the_window(error: PublishError, limits: list[int]) -> None:
    state = BackpressureState(100)
    for level, limit in enumerate(limits, 1):
        state.pause(error, 10.0 * level, 2.0)
        assert (state.level, state.limit, state.began, state.until) == (level, limit, 10.0 * level, 10.0 * level + 2.0)


def test_the_window_never_shrinks_below_one() -> None:
    state = BackpressureState(1)
    state.pause(RateLimited("429"), 0.0, 1.0)
    assert state.limit == 1


@each(
    ("sent_at", "now", "concerns"),
    [(10.0, 12.0, True), (9.9, 12.0, False), (10.0, 11.9, False), (12.0, 13.0, True)],
)
def test_a_burst_of_refusals_is_one_pause(sent_at: float, now: float, concerns: bool) -> None:
    state = BackpressureState(100)
    assert state.concerns(0.0, 0.0)
    state.pause(NoResponders("no leader"), 10.0, 2.0)
    assert state.concerns(sent_at, now) is concerns


def test_only_an_acknowledgement_of_what_was_sent_since_ends_the_pauses() -> None:
    state = BackpressureState(100)
    state.pause(NoResponders("no leader"), 10.0, 2.0)
    state.acknowledged(9.9)
    assert state.level == 1
    state.acknowledged(10.0)
    assert state.level == 0


def test_a_new_connection_is_tried_at_once() -> None:
    state = BackpressureState(100)
    state.pause(NoResponders("no leader"), 10.0, 2.0)
    state.reconnected(11.0)
    assert state.until == 11.0
    state.reconnected(99.0)
    assert state.until == 11.0


def test_the_window_grows_by_an_eighth_for_each_window_of_acknowledgements() -> None:
    state = BackpressureState(100)
    state.grow(1000, 100)
    assert state.limit == 100
    for _ in range(4):
        state.pause(RateLimited("429"), 0.0, 1.0)
    assert state.limit == 6
    found = []
    for acks in (5, 1, 6, 7, 1000, 1000):
        state.grow(acks, 100)
        found.append(state.limit)
    assert found == [6, 7, 7, 8, 9, 10]
    for _ in range(100):
        state.grow(1000, 100)
    assert state.limit == 100
