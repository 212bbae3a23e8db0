"""When an outage is declared and when it ends: tables of calls in the order in which a sender makes them."""

from __future__ import annotations

import pytest
from mama_spark.sending.outage import OutageDetector

#: (blocked, in flight, now) -> whether what waits is given up; the timeout is 10 s
Call = tuple[bool, int, float, bool]


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([(False, 0, 0.0, False), (False, 0, 99.0, False)], id="nothing waits"),
        pytest.param([(True, 0, 5.0, False), (True, 0, 15.0, False), (True, 0, 15.1, True)], id="too long"),
        pytest.param([(True, 0, 0.0, False), (False, 0, 9.0, False), (True, 0, 11.0, False)], id="it went on"),
        pytest.param([(True, 1, 0.0, False), (True, 1, 99.0, False), (True, 0, 99.5, True)], id="flights come first"),
        pytest.param([(True, 0, 0.0, False), (True, 0, 11.0, True), (True, 0, 11.1, True)], id="declared once"),
        pytest.param(
            [(True, 0, 0.0, False), (True, 0, 11.0, True), (False, 0, 12.0, False), (True, 0, 13.0, False),
             (True, 0, 13.1, True)],
            id="a declared outage is not waited for again",
        ),
    ],
)  # fmt: skip
def test_what_waits_is_given_up_after_the_limit_and_when_nothing_is_in_flight(calls: list[Call]) -> None:
    outage = OutageDetector(10.0)
    for blocked, in_flight, now, expected in calls:
        assert outage.lasts_too_long(blocked, in_flight, now) is expected, now


def declared() -> OutageDetector:
    outage = OutageDetector(10.0)
    outage.lasts_too_long(True, 0, 0.0)
    assert outage.lasts_too_long(True, 0, 11.0)
    assert outage.declared
    return outage


def test_an_acknowledgement_ends_the_outage_and_the_time_begins_anew() -> None:
    outage = declared()
    outage.acknowledged()
    assert not outage.declared
    assert [outage.lasts_too_long(True, 0, now) for now in (12.0, 22.0, 22.1)] == [False, False, True]


def test_a_reconnect_ends_the_outage_but_not_the_time_without_progress() -> None:
    outage = declared()
    outage.reconnected()
    assert not outage.declared
    assert outage.lasts_too_long(True, 0, 12.0)


def test_a_send_that_is_never_acknowledged_begins_the_time_anew_and_leaves_the_outage() -> None:
    outage = declared()
    outage.sent_unacknowledged()
    assert outage.declared
    assert [outage.lasts_too_long(True, 0, now) for now in (12.0, 12.1)] == [False, True]
