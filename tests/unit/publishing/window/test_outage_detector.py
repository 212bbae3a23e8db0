"""When an outage begins and ends, and what backpressure leaves of the window."""

from __future__ import annotations

from mama_spark.contracts.errors import NoResponders, RateLimited
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


@each(("sent_at", "now", "concerns"), [(10.0, 12.0, True), (9.9, 12.0, False), (10.0, 11.9, False), (12.0, 13.0, True)])
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
