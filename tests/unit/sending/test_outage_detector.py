"""When an outage is noticed, declared and over: checks as a sender makes them, at times that the test gives."""

from __future__ import annotations

from mama_spark.sending.outage import MAX_STEP, OutageDetector

from tests.support.tables import each

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
