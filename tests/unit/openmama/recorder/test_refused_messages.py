"""What a full log rejected is kept until it takes gap records, and takes little memory meanwhile."""

from __future__ import annotations

from mama_spark.openmama.recorder.gaps import RefusedMessages
from mama_spark.openmama.wire.records import MamaGapCause, MamaRecord, MamaRecordKind


def gap(first: int, last: int, topic: str = "mama.A", cause: MamaGapCause = MamaGapCause.REFUSED) -> MamaRecord:
    return MamaRecord(MamaRecordKind.GAP, topic, 7, cause=cause, sender=5, first=first, last=last)


def taken(refused: RefusedMessages) -> list[tuple[str, int, int, int]]:
    return [(one.topic, one.cause, one.first, one.last) for one in refused.take(8)]


def test_numbers_that_follow_each_other_are_one_gap() -> None:
    refused = RefusedMessages()
    refused.add([gap(n, n) for n in range(1, 1001)])
    assert len(refused) == 1
    refused.add([gap(1002, 1003), gap(1001, 1001), gap(1, 1, "mama.B"), gap(1004, 1009, cause=MamaGapCause.WAY)])
    assert taken(refused) == [("mama.A", 3, 1, 1003), ("mama.B", 3, 1, 1), ("mama.A", 1, 1004, 1009)]
    assert not len(refused)


def test_a_gap_record_that_was_rejected_is_put_before_what_followed() -> None:
    refused = RefusedMessages()
    refused.add([gap(11, 20)])
    refused.add([gap(1, 10)])
    assert taken(refused) == [("mama.A", 3, 1, 20)]


def test_numbers_of_a_publisher_that_counted_anew_stay_apart_and_those_without_numbers_do_not() -> None:
    refused = RefusedMessages()
    refused.add([gap(1, 1), gap(2, 2), gap(1, 1), gap(2, 2), *[gap(0, 0, "mama.B")] * 100])
    assert taken(refused) == [("mama.A", 3, 1, 2), ("mama.A", 3, 1, 2), ("mama.B", 3, 0, 0)]
