"""delta-spark reads what delta-rs committed, and jobs/report.py sums it up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.cli.commands.jobs import delta_jars
from mama_spark.contracts.errors import FlightLogError
from mama_spark.flightlog.commit import abort, commit
from mama_spark.spark import read_flight_log
from mama_spark.spark.read_flight_log import flight_log
from pyspark.sql import SparkSession

from tests.support.flight_logs import BATCH, STREAM, T0, flights, rows, stage
from tests.support.spark.spark_jobs import ROOT, submit


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A failed attempt at a batch, its restart, and a batch write with one refusal."""
    stage(tmp_path / "log", STREAM, flights(2, "failed"))
    abort(str(tmp_path / "log"), {}, STREAM)
    commit(str(tmp_path / "log"), {}, STREAM, stage(tmp_path / "log", STREAM, flights(2, "again")), app=("query-1", 0))
    commit(str(tmp_path / "log"), {}, BATCH, stage(tmp_path / "log", BATCH, flights(3, "batch", failed=1)))
    return tmp_path / "log"


def test_both_readers_see_the_same_rows(spark: SparkSession, log: Path) -> None:
    names = ["flight_id", "event", "topic", "size", "sequence", "status", "code", "committed", "batch_id", "latency_us"]
    ours = [tuple(r[n] for n in names) for r in rows(log)]
    frame = flight_log(spark, str(log)).orderBy("event_time", "flight_id")
    theirs = [tuple(r) for r in frame.selectExpr(*names, "unix_micros(event_time)").collect()]
    assert [r[:-1] for r in theirs] == ours
    assert {r[-1] for r in theirs} == {T0, T0 + 1000, T0 + 2000}, "the same instants"
    assert flight_log(spark, str(log), committed_only=True).count() == 5


@pytest.mark.thorough
def test_submitted_report_job_prints_the_summary(log: Path, tmp_path: Path) -> None:
    conf = tmp_path / "report.toml"
    conf.write_text(f'flight_log = "{log}"\noutput = "{tmp_path / "out"}"\npage = "{tmp_path / "page.html"}"\n')
    shown = submit("report", conf, "--jars", ",".join(map(str, delta_jars())))
    assert "slowest_topics:" in shown
    assert ":: resolving dependencies ::" not in shown, "as --packages makes Ivy print at each start"
    assert "1 of 5 rows was not acknowledged." in (tmp_path / "page.html").read_text("utf-8")
    (file,) = (tmp_path / "out" / "rows").glob("*.json")
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"committed": True, "rows": 5, "acked": 4, "published": 0, "failed": 1, "timed_out": 0},
        {"committed": False, "rows": 2, "acked": 2, "published": 0, "failed": 0, "timed_out": 0},
    ]
    (file,) = (tmp_path / "out" / "failures").glob("*.json")
    assert json.loads(file.read_text()) == {
        "event": "completed_exceptionally", "status": "PUBLISH_ERROR_NOT_ENTITLED", "code": 403, "info": "denied",
        "committed": True, "rows": 1,
    }  # fmt: skip


SQL = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "how-to" / "query-the-flight-log.md").read_text(), re.DOTALL)


def test_documented_queries_run_and_answer(spark: SparkSession, tmp_path: Path) -> None:
    """Each finds rows in a log that has something of everything."""
    extra = [pa.field("order_id", pa.int64())]
    some = flights(
        3,
        "a",
        failed=1,
        flight_id=pa.array(["a-0", "a-0", "a-2"]),
        extra=pa.record_batch({"order_id": pa.array([1, 2, 3])}),
        duplicate=np.array([True, False, False]),
        may_have_landed=np.array([False, False, True]),
        payload=pa.array([None, None, b"x"], pa.binary()),
    )
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, some, extra=extra), extra=extra)
    flight_log(spark, str(tmp_path)).cache().createOrReplaceTempView("log")
    spark.sql("SELECT id AS order_id, id * 1.5 AS amount FROM range(1, 5)").createOrReplaceTempView("orders")
    counts = [len(spark.sql(query).collect()) for query in SQL]
    assert counts == [4, 2, 1]


def test_a_session_without_delta_is_told_what_to_do(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        read_flight_log, "_FORMAT", "no_delta_here"
    )  # what Spark says of a format that it does not have
    with pytest.raises(FlightLogError, match="this session has no Delta"):
        flight_log(spark, str(tmp_path))
