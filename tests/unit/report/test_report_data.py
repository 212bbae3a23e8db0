"""What the report page is drawn from, held against what was put into the log."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import PERHAPS_TWICE, FlightLogError
from mama_spark.flightlog.columns import LoggedEvent
from mama_spark.flightlog.commit import abort, commit
from mama_spark.flightlog.folder import WriteId
from mama_spark.flightlog.log_level import Level
from mama_spark.flightlog.schema import PUBLISHED, TIMEOUT
from mama_spark.flightlog.staging import Staging
from mama_spark.report.data import MOST_BINS, WIDTHS, bin_width, read_report, standstills

from tests.support.flight_logs import BATCH, STREAM, T0, flights, stage
from tests.support.tables import each

SECOND = 1_000_000
NOW = datetime(2026, 9, 22, tzinfo=UTC)


def put(table: Path, *columns: Any, write_id: Any = BATCH, **options: Any) -> None:
    commit(str(table), {}, write_id, stage(table, write_id, *columns, **options))


def test_a_standstill_is_a_row_of_zeros(tmp_path: Path) -> None:
    put(tmp_path, flights(5), flights(4, "later", failed=1, at=T0 + 10 * SECOND))
    found = read_report(str(tmp_path), {}, NOW)
    assert found.width == SECOND // 10
    assert [row["at"] - found.totals["first"] for row in found.timeline] == list(range(0, 10_100_000, found.width))
    busy = {n: row for n, row in enumerate(found.timeline) if row["acked"] or row["failed"]}
    assert {n: (row["acked"], row["failed"], row["p50"]) for n, row in busy.items()} == {
        0: (5, 0, 500),
        100: (3, 1, 500),
    }
    assert found.timeline[50] == {
        "at": found.totals["first"] + 50 * found.width,
        **dict.fromkeys(("sent", "answered", "rows", "acked", "published", "failed", "timed_out", "resent"), 0),
        **dict.fromkeys(("p50", "p99")),
    }
    assert found.standstills == [], "nothing waited"
    assert sum(row["sent"] for row in found.timeline) == sum(row["answered"] for row in found.timeline) == 9


def test_an_outage_is_a_time_in_which_messages_wait_and_none_is_acknowledged(tmp_path: Path) -> None:
    waited: dict[str, Any] = {"publish_time": np.full(3, T0), "latency_us": np.full(3, 5 * SECOND)}
    put(tmp_path, flights(5), flights(3, "waited", at=T0 + 5 * SECOND, **waited))
    [outage] = read_report(str(tmp_path), {}, NOW).standstills
    assert outage["what"] == "outage"
    assert 4.8 < (outage["until"] - outage["at"]) / SECOND < 5


def test_rows_of_committed_writes_count_once_and_other_attempts_are_apart(tmp_path: Path) -> None:
    """A retried task is in the log twice, and so is what a driver that was killed had published."""
    write, again = WriteId("query-2", "run-a", 1, "nats"), WriteId("query-2", "run-b", 1, "nats")
    abort(str(tmp_path), {}, write, stage(tmp_path, write, flights(5, "first")))
    abort(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(3, "failed", failed=1)))
    names = ("flights", "rows", "acked", "published", "failed", "timed_out")
    only_attempts = read_report(str(tmp_path), {}, NOW)
    assert [only_attempts.totals[name] for name in names] == [0] * 6
    assert sum(row["acked"] for row in only_attempts.partitions) == 7, "or a write that failed would show nothing"
    sent = flights(2, "sent", event=np.full(2, PUBLISHED, np.uint8), ack_level="none")
    packed = flights(5, "second", rows=np.full(5, 10, np.int32), failed=1)
    commit(str(tmp_path), {}, again, stage(tmp_path, again, packed, sent), app=("query-2", 1))
    found = read_report(str(tmp_path), {}, NOW)
    assert [found.totals[name] for name in names] == [7, 52, 40, 2, 10, 0]
    assert [found.not_committed[name] for name in names] == [8, 8, 7, 0, 1, 0]
    for rows in (found.timeline, found.topics, found.partitions):
        assert [sum(row[name] for row in rows) for name in names[1:]] == [52, 40, 2, 10, 0]
    assert [(row["committed"], row["rows"]) for row in found.reasons] == [(True, 10), (False, 1)]


def test_reasons_that_differ_in_numbers_only_are_one(tmp_path: Path) -> None:
    reasons = {i: ("INVALID_ARG", None, f"payload of {1_000_000 + i} bytes") for i in range(4)}
    put(tmp_path, flights(5, failed=4, reasons={**reasons, 4: ("INVALID_ARG", None, "no topic")}))
    found = read_report(str(tmp_path), {}, NOW).reasons
    assert [(row["rows"], row["info"]) for row in found] == [(3, "payload of 1000001 bytes"), (1, "no topic")]


def test_totals_count_each_message_once(tmp_path: Path) -> None:
    late = flights(
        2, "late", event=np.full(2, TIMEOUT, np.uint8), reasons=dict.fromkeys(range(2), ("TIMEOUT", None, "no answer")),
        may_have_landed=np.ones(2, np.bool_), sends=np.full(2, 3, np.int32),
    )  # fmt: skip
    departed = flights(3, event=np.full(3, PUBLISHED, np.uint8))
    copied = flights(1, "copied", reasons={0: (None, None, f"{PERHAPS_TWICE}: a server was silent")})
    twice = flights(1, "twice", duplicate=np.ones(1, np.bool_))
    put(tmp_path, departed, flights(3), late, twice, copied, level=Level.ALL)
    totals = read_report(str(tmp_path), {}, NOW).totals
    names = ("flights", "acked", "failed", "timed_out", "duplicates", "resent", "in_doubt", "topics", "runs")
    assert [totals[name] for name in names] == [7, 5, 0, 2, 1, 2, 2, 1, 1]
    assert totals["perhaps_twice"] == 1


def test_every_latency_is_in_its_bin(tmp_path: Path) -> None:
    latencies = np.array([0, 1, 9, 10, 999, 1000, 123_456, 10**9])
    put(tmp_path, flights(len(latencies), latency_us=latencies))
    bins = read_report(str(tmp_path), {}, NOW).distribution
    counted = [
        sum(bool(row["low"] * (1 - 1e-9) <= max(us, 1) < row["high"] * (1 - 1e-9)) for us in latencies.tolist())
        for row in bins
    ]
    assert [row["flights"] for row in bins] == counted
    assert sum(counted) == len(latencies)


def test_topics_with_failures_come_first(tmp_path: Path) -> None:
    topics = pa.array(["a", "b", "b", "b", "c", "a"]).dictionary_encode()
    put(tmp_path, flights(6, failed=2, topic=topics))
    rows = read_report(str(tmp_path), {}, NOW).topics
    assert [(row["topic"], row["rows"], row["failed"]) for row in rows] == [("a", 2, 1), ("c", 1, 1), ("b", 3, 0)]


def test_a_run_or_a_time_is_chosen_whatever_its_name_is(tmp_path: Path) -> None:
    put(tmp_path, flights(5))
    put(tmp_path, flights(2, "stream", at=T0 + 60 * SECOND), write_id=STREAM)

    def count(**chosen: Any) -> int:
        found: int = read_report(str(tmp_path), {}, NOW, **chosen).totals["flights"]
        return found

    assert (count(), count(run="run-7"), count(run="run-1"), count(run="x' OR '1'='1")) == (7, 5, 2, 0)
    assert count(run="{braces} %") == 0
    assert count(since=datetime.fromtimestamp(T0 / 1e6 + 30, UTC)) == 2


def test_events_of_publishers_are_no_messages(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), {}, BATCH, 0, 0)
    staging.add_events([LoggedEvent("publisher", "error", T0, info="connection lost", publisher_state="LIVE")])
    staging.add_flights(flights(2))
    commit(str(tmp_path), {}, BATCH, staging.close())
    found = read_report(str(tmp_path), {}, NOW)
    assert found.totals["flights"] == 2
    assert [(row["first"], row["last"], row["ended"], row["errors"]) for row in found.publishers] == [(T0, T0, 0, 1)]
    assert [(row["kind"], row["at"], row["info"]) for row in found.errors] == [("publisher", T0, "connection lost")]


def test_no_flight_log_is_said(tmp_path: Path) -> None:
    with pytest.raises(FlightLogError, match="no flight log there"):
        read_report(str(tmp_path / "none"), {}, NOW)


@given(st.integers(0, 10**17))
def test_bins_are_few_and_no_wider_than_needed(span: int) -> None:
    width = bin_width(span)
    assert span / width <= MOST_BINS
    narrower = [w for w in WIDTHS if round(w * 1e6) < width]
    assert all(span / 1e6 / w > MOST_BINS for w in narrower)


def bins(*rows: tuple[int, int, int]) -> list[dict[str, int]]:
    """:param rows: sent, answered, acked; one for each second"""
    names = ("sent", "answered", "acked")
    return [{"at": n * SECOND, **dict(zip(names, row, strict=True))} for n, row in enumerate(rows)]


@each(
    ("rows", "expected"),
    [
        ([(5, 5, 5), (0, 0, 0), (5, 5, 5)], []),  # nothing waits
        ([(5, 3, 3), (0, 0, 0), (0, 0, 0), (5, 7, 7)], [("outage", 1, 3)]),
        ([(5, 3, 3), (0, 1, 1), (5, 6, 6)], [("hold", 1, 2)]),
        ([(5, 3, 3), (0, 1, 1), (0, 1, 1)], []),  # the end: there is nothing more to send
        ([(5, 3, 3), (0, 2, 0), (5, 5, 5)], [("outage", 1, 2)]),  # they fail
    ],
)
def test_holds_and_outages(rows: list[tuple[int, int, int]], expected: list[tuple[str, int, int]]) -> None:
    found = standstills(bins(*rows), SECOND)
    assert [(one["what"], one["at"] // SECOND, one["until"] // SECOND) for one in found] == expected
