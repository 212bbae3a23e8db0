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
from mama_spark.errors import FlightLogError
from mama_spark.flightlog.columns import LoggedEvent
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.schema import PUBLISHED, TIMEOUT, Level
from mama_spark.flightlog.staging import Staging
from mama_spark.report_page.data import MOST_BINS, WIDTHS, bin_width, read_report

from tests.support.flight_logs import BATCH, STREAM, T0, flights, stage

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
    assert {n: (row["acked_rows"], row["failed"], row["p50"]) for n, row in busy.items()} == {
        0: (5, 0, 500),
        100: (3, 1, 500),
    }
    assert found.timeline[50] == {
        "at": found.totals["first"] + 50 * found.width,
        **dict.fromkeys(("acked_rows", "acked", "failed", "timed_out", "resent"), 0),
        **dict.fromkeys(("p50", "p99")),
    }


def test_totals_count_each_message_once(tmp_path: Path) -> None:
    late = flights(
        2, "late", event=np.full(2, TIMEOUT, np.uint8), reasons=dict.fromkeys(range(2), ("TIMEOUT", None, "no answer")),
        may_have_landed=np.ones(2, np.bool_), sends=np.full(2, 3, np.int32),
    )  # fmt: skip
    departed = flights(3, event=np.full(3, PUBLISHED, np.uint8))
    put(tmp_path, departed, flights(3), late, flights(1, "twice", duplicate=np.ones(1, np.bool_)), level=Level.ALL)
    totals = read_report(str(tmp_path), {}, NOW).totals
    names = ("flights", "acked", "failed", "timed_out", "duplicates", "resent", "in_doubt", "topics", "runs")
    assert [totals[name] for name in names] == [6, 4, 0, 2, 1, 2, 2, 1, 1]


def test_without_acknowledgements_published_is_the_outcome(tmp_path: Path) -> None:
    put(tmp_path, flights(3, event=np.full(3, PUBLISHED, np.uint8), ack_level="none"), level=Level.ALL)
    assert read_report(str(tmp_path), {}, NOW).totals["acked"] == 3


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
    assert [(row["topic"], row["flights"], row["failed"]) for row in rows] == [("a", 2, 1), ("c", 1, 1), ("b", 3, 0)]


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
    assert [(row["event"], row["state"], row["at"], row["info"]) for row in found.publishers] == [
        ("error", "LIVE", T0, "connection lost")
    ]


def test_no_flight_log_is_said(tmp_path: Path) -> None:
    with pytest.raises(FlightLogError, match="no flight log there"):
        read_report(str(tmp_path / "none"), {}, NOW)


@given(st.integers(0, 10**17))
def test_bins_are_few_and_no_wider_than_needed(span: int) -> None:
    width = bin_width(span)
    assert span / width <= MOST_BINS
    narrower = [w for w in WIDTHS if round(w * 1e6) < width]
    assert all(span / 1e6 / w > MOST_BINS for w in narrower)
