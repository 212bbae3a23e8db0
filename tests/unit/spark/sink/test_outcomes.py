"""Outcomes of rows, and what a write makes of them."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.contracts.errors import PERHAPS_TWICE, PublishError, Rejected, TooLarge, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.memory import MemoryBroker
from mama_spark.options import SinkOptions
from mama_spark.publishing.batch_config import OnOutage
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch
from mama_spark.spark.sink.dead_letter_queue import DeadLetterQueue
from mama_spark.spark.sink.failure_policy import failures_of_write, on_outage, task_must_be_retried, tolerates_outages
from mama_spark.spark.sink.job import OutcomeCounts, PartitionReport
from mama_spark.spark.sink.outcomes import _reasons, count_outcomes, joined_ids

from tests.support.spark import memory_harness
from tests.support.spark.memory_harness import PLAN, flights
from tests.support.tables import each

# --- what becomes of the rows of a task: who is to blame, what is counted, and which of them are dead letters ---------

DEAD = {"onError": "deadletter", "deadLetterTopic": "dead"}


def publish(broker: MemoryBroker, log: Path, topics: list[str], **options: str) -> PartitionReport:
    rows = pa.record_batch({"topic": topics, "value": [b"%d" % i for i in range(len(topics))]})
    return memory_harness.publish(memory_harness.job(broker, log, **options), [rows])


def test_counts_of_tasks_add_up() -> None:
    total = OutcomeCounts()
    for n in (1, 2):
        one = OutcomeCounts(n, n, n, n, n, n, n, n, n, [("t", str(n), "why")], Counter({"why": n}))
        total.add(one)
    assert total == OutcomeCounts(3, 3, 3, 3, 3, 3, 3, 3, 3, [("t", "1", "why")], Counter({"why": 3}))


def test_the_sentence_of_a_report_names_what_there_is() -> None:
    counts = OutcomeCounts(rows=5, acked=1, published=2, failed=2, dead_lettered=1)
    assert counts.sentence() == (
        "5 rows: 1 acked, 2 published without acknowledgement, 2 failed, 0 timed out, 1 sent to the dead letters"
    )
    counts.add_failure("t", "id", "no", 1, is_row_error=True)
    counts.add_failure("u", "jd", "no", 1, is_row_error=True)
    assert counts.sentence().endswith("; first failures: 2 x no (topic 't', id 'id')")


def test_rows_that_may_be_stored_twice_are_counted_and_told() -> None:
    """Those that were sent while nobody knew where an earlier copy was; not one that was found, nor one that failed."""
    batch, counts = MessageBatch.of(["t"] * 4, [b"x"] * 4), OutcomeCounts()
    flights = FlightBatch(4, batch)
    flights.state[:] = [FlightState.ACKED] * 3 + [FlightState.TIMEOUT]
    flights.sends[:] = [1, 0, 1, 1]
    flights.send_anyway(np.array([0, 1, 3]))
    flights.sends[:] = [2, 0, 1, 2]
    count_outcomes(counts, flights, batch, pa.nulls(4, pa.string()), None)
    assert counts.summary() == (
        "4 rows: 3 acked, 0 failed, 1 timed out, 1 perhaps stored twice (onSilentServer=publish)"
    )
    assert [(row, info[2][:20]) for row, info in _reasons(flights, None).items()] == [(0, PERHAPS_TWICE)]  # type: ignore[index]


def test_failures_are_told_by_reason_with_the_first_row_of_each() -> None:
    counts = OutcomeCounts(rows=106, failed=106)
    for i in range(106):
        counts.add_failure(None if i == 5 else f"t.{i}", f"id{i}", f"no {max(0, i - 98)}", 1, is_row_error=True)
    assert counts.failures() == [
        "99 x no 0 (topic 't.0', id 'id0')",
        *(f"1 x no {i} (topic 't.{98 + i}', id 'id{98 + i}')" for i in range(1, 5)),
        "3 for other reasons",
    ]


def test_only_the_most_frequent_of_many_reasons_are_kept() -> None:
    few, many = (OutcomeCounts(reasons=Counter({f"r{i}": i + 1 for i in range(n)})) for n in (50, 51))
    few.limit_reasons()
    many.limit_reasons()
    assert len(few.reasons) == 50
    assert many.reasons == {f"r{i}": i + 1 for i in range(31, 51)}


def test_a_flight_that_was_acknowledged_in_the_end_has_no_reason(broker: MemoryBroker, tmp_path: Path) -> None:
    broker.then(["409"])
    report = publish(broker, tmp_path, ["t"] * 3, retryBackoff="1ms")
    assert (report.counts.acked, report.counts.failed) == (3, 0)
    assert {(f["event"], f["status"], f["code"], f["info"]) for f in flights(tmp_path)} == {("acked", None, None, None)}
    assert max(f["sends"] for f in flights(tmp_path)) > 1


def test_row_errors_do_not_fail_the_task(broker: MemoryBroker, tmp_path: Path) -> None:
    broker.denied.add("bad")
    report = publish(broker, tmp_path, ["good", "bad"])
    assert (report.counts.acked, report.counts.row_errors, report.counts.outage_errors, report.fatal) == (1, 1, 0, None)


def test_rows_that_an_outage_failed_are_dead_letters_only_where_all_errors_are_tolerated(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    quick = {"retryBackoff": "1ms", "retryDeadline": "100ms", "retryAttempts": "1", **DEAD}
    broker.then(["503"] * 4)
    with pytest.raises(Unavailable):
        publish(broker, tmp_path / "1", ["t"] * 2, **quick)
    assert broker.messages() == []
    broker.script.clear()
    broker.then(["503"] * 4)
    report = publish(broker, tmp_path / "2", ["t"] * 2, **quick, errorTolerance="all")
    assert report.counts.dead_lettered == 2
    assert [m.topic for m in broker.messages()] == ["dead"] * 2


def test_what_a_row_has_null_is_null_in_the_log_and_in_the_dead_letters(broker: MemoryBroker, tmp_path: Path) -> None:
    """And not an empty text, which another row may have, and which could be published."""
    tables = {"flightLog": str(tmp_path / "log"), "deadLetterTable": str(tmp_path / "dead")}
    given = {"topicPrefix": "p", "idColumn": "id", **DEAD, **tables}
    columns = {"topic": [None, "t", "t", "*"], "value": [b"v", None, b"v", b""], "id": ["0", "1", None, "3"]}
    rows = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    report = memory_harness.publish(memory_harness.job(broker, None, replace(PLAN, id="id"), **given), [rows])
    expected = [(None, b"v", "0"), ("p.t", None, "1"), ("p.t", b"v", None), ("p.*", b"", "3")]
    for table in tables.values():
        found = [(row["topic"], row["payload"], row["flight_id"]) for row in flights(Path(table))]
        assert found == expected
    assert report.counts.first_failures[0][0] is None
    assert [m.payload for m in broker.messages()] == [b"v", b"", b"v", b""]


def test_a_dead_letter_has_an_id_of_its_own_and_no_headers_that_control_the_broker() -> None:
    """That of a row that is too large is empty."""
    letters = DeadLetterQueue("dead", None, True)
    own = {"Nats-Msg-Id": ["x"], "nats-expected-stream": ["S"], "a": ["1", "2"]}
    pack = {"a": ["1"], "Mama-Pack": ["lines;v=1"], "Mama-Pack-Rows": ["2"]}
    rows = MessageBatch.of(["t"] * 2, [b"payload"] * 2, [own, pack])
    errors: list[PublishError] = [Rejected("no", 400), TooLarge("large")]
    assert letters.add(rows, pa.array(["id", "jd"]), errors, np.array([0, 1])) == 2
    batch = letters.take(all_of_them=True)
    assert batch is not None
    assert batch.ids is not None
    assert batch.headers is not None
    assert batch.payloads.to_pylist() == [b"payload", b""]
    assert batch.ids.to_pylist() == ["id-dlq", "jd-dlq"]
    first, second = map(dict, batch.headers.to_pylist())
    assert first == {
        "a": ["1", "2"], "Mama-Error-Status": ["PUBLISH_ERROR"], "Mama-Error-Code": ["400"],
        "Mama-Error-Info": ["no"], "Mama-Error-Topic": ["t"],
    }  # fmt: skip
    assert "Mama-Pack" not in second
    assert second["a"] == ["1"]


@each(
    ("counts", "said"),
    [
        (OutcomeCounts(), "0 rows"),
        (OutcomeCounts(rows=1, acked=1), "1 row, all acknowledged"),
        (
            OutcomeCounts(rows=3000, acked=3000, duplicates=2),
            "3,000 rows, all acknowledged (2 with an id stored before, by another task or an earlier attempt or write)",
        ),
        (
            OutcomeCounts(rows=3, acked=2, failed=1, duplicates=1),
            "3 rows: 2 acked (1 with an id stored before, by another task or an earlier attempt or write), "
            "1 failed, 0 timed out",
        ),
    ],
)
def test_a_write_is_summed_up_in_a_line(counts: OutcomeCounts, said: str) -> None:
    assert counts.summary() == said


@each("first", [0, 9_990, 10_000, 99_990, 10**9 - 5])
@each("n", [0, 1, 20, 20_001])
def test_numbers_become_ids_as_they_are_written(first: int, n: int) -> None:
    numbers = np.arange(first, first + n)
    assert joined_ids("rün-0-1-", numbers).to_pylist() == [f"rün-0-1-{i}" for i in numbers]
    assert joined_ids("p", numbers[::3]).to_pylist() == [f"p{i}" for i in numbers[::3]]
    assert joined_ids("p", np.array([12_340, 12_345, 12_341, 12_343])).to_pylist() == [
        "p12340", "p12345", "p12341", "p12343",
    ], "those of packs come in their own order"  # fmt: skip


# --- which failures fail a task or a write, and which become dead letters ---------------------------------------------

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


# --- arrays that are freed leave their pages in the process -----------------------------------------------------------

_FAULTS = """
import resource
import numpy as np
from mama_spark.spark.sink.packs import keep_freed_memory
keep_freed_memory()
held = [np.ones(1 << 16) for _ in range(4)]  # an array of 512 KiB has 128 pages
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    del held
    held = [np.ones(1 << 16) for _ in range(4)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide themselves")
def test_pages_of_freed_arrays_are_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, check=True, text=True)
    assert int(done.stdout) < 10_000, "of 51,200 pages"


@each(
    ("given", "what"),
    [
        ({}, OnOutage.FAIL),
        ({"order": "partition"}, OnOutage.FAIL_AT_GAP),
        ({"onUnavailable": "wait"}, OnOutage.WAIT),
        ({"onUnavailable": "wait", "order": "partition", "onUncertain": "report"}, OnOutage.WAIT_AT_GAP),
        ({"onUnavailable": "wait", "order": "partition", "onUncertain": "report", "dedup": "false"}, OnOutage.WAIT),
    ],
)
def test_a_task_that_is_repeated_ends_at_a_gap_where_order_counts(given: dict[str, str], what: OnOutage) -> None:
    assert on_outage(SinkOptions.parse({"url": "mlp://host", **given})) is what
