"""Series of errors: the first one is recorded, the others are summed up."""

from __future__ import annotations

from mama_spark.tango.log.unrecorded import ErrorSeries, ErrorSummary
from mama_spark.tango.types import DevError, Severity

TOPIC = b"tango://h:1/a/b/c/x.idl5_change"
BROKEN = (DevError("Broken", Severity.ERR, "at 12:00", "here"),)
OTHER = (DevError("Other", Severity.ERR, "", ""),)


def frames(ctr: int) -> tuple[bytes, ...]:
    return (TOPIC, b"\1", bytes([ctr]), b"errors")


def test_equal_errors_in_a_row_are_counted_until_the_series_ends() -> None:
    series = ErrorSeries(100)
    assert not series.continues(TOPIC, BROKEN, 1, frames(1), 1)
    series.begin(TOPIC, BROKEN, 1)
    later = (BROKEN[0]._replace(desc="at 12:01"),)  # the same reason
    assert all(series.continues(TOPIC, later, at, frames(at), at) for at in (2, 3, 4))
    assert not series.continues(b"another topic", BROKEN, 5, frames(5), 5)
    assert series.end(TOPIC) == ErrorSummary(TOPIC, 4, frames(4), 3, 2, 4)
    assert series.end(TOPIC) is None
    assert len(series) == 0


def test_another_error_begins_another_series() -> None:
    series = ErrorSeries(100)
    series.begin(TOPIC, BROKEN, 1)
    assert not series.continues(TOPIC, OTHER, 2, frames(2), 2)
    assert series.end(TOPIC) is None  # there was one error, which was recorded


def test_a_series_that_goes_on_is_summed_up_each_period() -> None:
    series = ErrorSeries(100)
    series.begin(TOPIC, BROKEN, 1)
    series.continues(TOPIC, BROKEN, 50, frames(2), 2)
    assert series.due(100) == []
    assert series.due(101) == [ErrorSummary(TOPIC, 50, frames(2), 1, 2, 2)]
    series.continues(TOPIC, BROKEN, 150, frames(3), 3)
    assert series.due(200) == []
    assert series.end_all() == [ErrorSummary(TOPIC, 150, frames(3), 1, 3, 3)]


def test_without_a_period_every_error_is_recorded() -> None:
    series = ErrorSeries(0)
    series.begin(TOPIC, BROKEN, 1)
    assert not series.continues(TOPIC, BROKEN, 2, frames(2), 2)
