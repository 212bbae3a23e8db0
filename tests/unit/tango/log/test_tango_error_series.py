"""Series of errors: the first one is recorded, the others are summed up."""

from __future__ import annotations

from mama_spark.tango.log.record_builder import RecordBuilder
from mama_spark.tango.log.records import GapCause
from mama_spark.tango.log.unrecorded import ErrorSeries
from mama_spark.tango.types import DevError, Severity

TOPIC = b"tango://h:1/a/b/c/x.idl5_change"
BROKEN = (DevError("Broken", Severity.ERR, "at 12:00", "here"),)
OTHER = (DevError("Other", Severity.ERR, "", ""),)


class Recorded:
    """A series of errors, and the summaries that it wrote: received, counter in the frames, first, last, count."""

    def __init__(self, period_ns: int) -> None:
        self.records, self.series = RecordBuilder(), ErrorSeries(period_ns, lambda topic: "name")

    def add(self, at: int, errors: tuple[DevError, ...] = BROKEN, topic: bytes = TOPIC) -> bool:
        return self.series.begins(self.records, topic, errors, at, (topic, b"\1", bytes([at]), b"errors"), at)

    @property
    def summaries(self) -> list[tuple[int, int, int, int, int]]:
        rows = zip(self.records.received, self.records.frames, self.records.gaps.values(), strict=True)
        assert {numbers.cause for numbers in self.records.gaps.values()} <= {GapCause.NONE}
        return [(received, frames[2][0], *numbers[:3]) for received, frames, numbers in rows]


def test_equal_errors_in_a_row_are_counted_until_the_series_ends() -> None:
    found = Recorded(100)
    assert found.add(1)
    later = (BROKEN[0]._replace(desc="at 12:01"),)  # the same reason
    assert not any(found.add(at, later) for at in (2, 3, 4))
    assert found.add(5, topic=b"another topic")
    found.series.end(found.records, TOPIC, TOPIC)
    assert found.summaries == [(4, 4, 2, 4, 3)]
    assert list(found.series.open) == [b"another topic"]


def test_another_error_begins_another_series() -> None:
    found = Recorded(100)
    assert [found.add(1), found.add(2, OTHER), found.add(3, OTHER), found.add(4)] == [True, True, False, True]
    assert found.summaries == [(3, 3, 3, 3, 1)]  # of the first series there was one error, which was recorded


def test_a_series_that_goes_on_is_summed_up_each_period() -> None:
    found = Recorded(100)
    assert [found.add(1), found.add(50)] == [True, False]
    for now, count in ((100, 0), (101, 1), (150, 1)):
        found.series.due(found.records, now)
        assert len(found.summaries) == count
    assert not found.add(150)
    found.series.due(found.records, 200)
    assert found.summaries == [(50, 50, 50, 50, 1)]
    found.series.end(found.records, *found.series.open)
    assert found.summaries[1:] == [(150, 150, 150, 150, 1)]


def test_without_a_period_every_error_is_recorded() -> None:
    found = Recorded(0)
    assert found.add(1)
    assert found.add(2)
