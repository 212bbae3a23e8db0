"""The progress of a whole write from what its tasks report."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from mama_spark.spark.write_counts import TaskCounts, WriteCounts, decode, encode

from tests.support.tables import each

TASK = TaskCounts("run 0", 0, 0, taken=10, acked=5, in_flight=5)


def test_a_report_survives_the_way_and_only_with_the_token_of_the_driver() -> None:
    counts = replace(TASK, waits_for="acknowledgements for 4 s: é")
    assert decode("secret", encode("secret", counts)) == counts
    assert decode("other", encode("secret", counts)) is None


def test_a_report_is_one_packet_however_long_its_text_is() -> None:
    datagram = encode("t" * 32, replace(TASK, job="j" * 60, waits_for="\U0001f6eb" * 5000))
    assert len(datagram) <= 1400
    assert decode("t" * 32, datagram) is not None


@given(st.binary() | st.sampled_from([b"[]", b"3", b'{"token": "t"}', b'{"token": "t", "job": 1}', b"null"]))
def test_whatever_arrives_raises_nothing(datagram: bytes) -> None:
    assert decode("t", datagram) is None


def test_a_later_attempt_replaces_the_earlier_one_in_any_order() -> None:
    counts = WriteCounts()
    second = replace(TASK, attempt=1, taken=3, acked=3)
    for report in (TASK, second, replace(TASK, acked=9), replace(TASK, partition=1, acked=4, failed=1)):
        counts.add(report)
    assert (counts.acked, counts.failed, counts.done) == (7, 1, 8)


def test_micro_batches_add_up_and_the_oldest_are_forgotten_but_counted() -> None:
    counts = WriteCounts()
    for batch in range(1000):
        counts.add(replace(TASK, job=f"run {batch}", ended=True))
    assert counts.acked == 5000
    assert len(counts._jobs) < 100


@each(
    ("reports", "note"),
    [
        ([], "waits for Spark to start the tasks"),
        ([TASK], "5 in flight, 1 partition at work"),
        ([replace(TASK, waits_for="rows from Spark")], "5 in flight, 1 partition at work, waits for rows from Spark"),
        ([TASK, replace(TASK, partition=1, waits_for="x")], "10 in flight, 2 partitions at work"),
        (
            [replace(TASK, partition=n, waits_for=f"reason {n}") for n in range(3)],
            "15 in flight, 3 partitions at work, waits for reason 0 and 2 more",
        ),
        ([replace(TASK, failed=2, ended=True)], "2 failed, 1 partitions done, waits for the others and the commit"),
    ],
)
def test_the_note_says_what_a_write_waits_for(reports: list[TaskCounts], note: str) -> None:
    counts = WriteCounts()
    for report in reports:
        counts.add(report)
    assert counts.note() == note
