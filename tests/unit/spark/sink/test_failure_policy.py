"""Which failures fail a task or a write, and which become dead letters."""

from __future__ import annotations

from mama_spark.errors import NoResponders, Rejected
from mama_spark.options import SinkOptions
from mama_spark.spark.sink.failure_policy import (
    becomes_dead_letter,
    failures_of_write,
    task_must_be_retried,
    tolerates_outages,
)
from mama_spark.spark.sink.job import OutcomeCounts

from tests.support.tables import each

DEAD_LETTER = {"onError": "deadletter", "deadLetterTopic": "dead"}
BOTH = OutcomeCounts(rows=10, row_errors=2, outage_errors=3)


def options(**given: str) -> SinkOptions:
    return SinkOptions.parse({"url": "memory://x", **given})


@each(
    ("given", "tolerated", "failures"),
    [
        ({}, False, 5),
        ({"errorTolerance": "all"}, False, 5),  # onError=fail tolerates nothing
        (DEAD_LETTER, False, 3),
        ({**DEAD_LETTER, "errorTolerance": "all"}, True, 0),
    ],
)
def test_the_write_fails_for_rows_that_the_options_do_not_tolerate(
    given: dict[str, str], tolerated: bool, failures: int
) -> None:
    assert tolerates_outages(options(**given)) is tolerated
    assert failures_of_write(options(**given), BOTH) == failures
    assert failures_of_write(options(**given), OutcomeCounts(rows=10, acked=10)) == 0


@each(
    ("given", "retried"),
    [
        ({}, True),
        (DEAD_LETTER, True),
        ({**DEAD_LETTER, "errorTolerance": "all"}, False),
        ({"onUncertain": "report"}, True),  # ids make the retry safe
        ({"onUncertain": "report", "dedup": "false"}, False),
        ({"dedup": "false"}, True),
    ],
)
def test_a_task_is_retried_after_an_outage_that_is_not_tolerated(given: dict[str, str], retried: bool) -> None:
    assert task_must_be_retried(options(**given), BOTH) is retried
    assert not task_must_be_retried(options(**given), OutcomeCounts(rows=10, row_errors=10))


def test_rows_that_an_outage_failed_are_dead_letters_only_with_error_tolerance_all() -> None:
    for given, outage in ((DEAD_LETTER, False), ({**DEAD_LETTER, "errorTolerance": "all"}, True)):
        assert becomes_dead_letter(options(**given), Rejected("no"))
        assert becomes_dead_letter(options(**given), NoResponders("no leader")) is outage
