"""What the driver sees of a write while it runs, and of the last one."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import mama_spark
import pytest
from deltalake import DeltaTable
from mama_spark.console import progress as console_progress
from mama_spark.contracts.errors import ConfigError
from mama_spark.flightlog.transaction import described_writes
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.spark import write_progress
from mama_spark.spark.write_counts import PROPERTY
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

ROWS = 3000


@pytest.mark.thorough
def test_one_bar_counts_all_partitions_and_the_last_write_is_an_object(
    spark: SparkSession, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, shown = str(tmp_path / "log"), io.StringIO()
    monkeypatch.setattr(console_progress, "QUIET", 0.0)
    monkeypatch.setattr(console_progress, "LINE_INTERVAL", 0.05)
    monkeypatch.setattr(sys, "stderr", shown)
    rows = spark.range(0, ROWS, 1, 3).selectExpr(
        "CASE WHEN id < 7 THEN 'no spaces allowed' ELSE 'progress.rows' END AS topic", "id AS k"
    )
    options = {
        "url": nats_server.url.replace("nats://", "nats://user:secret@"), "stream": "PROGRESS", "createStream": "true",
        "flightLog": log, "maxRatePerPartition": "1000", "onError": "log",
    }  # fmt: skip
    with mama_spark.progress(spark, total=ROWS) as counts:
        assert counts.note() == "waits for Spark to start the tasks"
        rows.write.format("mamapub").options(**options).mode("append").save()
        property_there = spark.sparkContext.getLocalProperty(PROPERTY)
    assert property_there is not None
    assert property_there.startswith("127.0.0.1:")
    assert spark.sparkContext.getLocalProperty(PROPERTY) is None
    assert (counts.acked, counts.failed) == (ROWS - 7, 7)
    lines = [line for line in shown.getvalue().splitlines() if "partition" in line]
    assert any(f"of {ROWS:,} messages" in line and "in flight" in line for line in lines), "while it ran"
    last = mama_spark.last_write(spark)
    assert last is not None
    assert (last.counts["rows"], last.counts["acked"], last.counts["failed"]) == (ROWS, ROWS - 7, 7)
    assert last.committed
    assert (last.failures.count(), last.flight_log) == (7, log)
    assert "BAD_SYMBOL" in last._repr_html_()
    assert f"{ROWS - 7:,} acked" in repr(last)
    assert last.report().data.totals["acked"] == ROWS - 7
    [told] = described_writes(DeltaTable(log))
    assert (told["run_id"], told["options"]["maxRatePerPartition"]) == (last.run_id, "1000")
    assert "secret" not in str(told)

    with pytest.raises(PySparkException):
        rows.write.format("mamapub").options(**{**options, "onError": "fail"}).mode("append").save()
    last = mama_spark.last_write(spark)
    assert last is not None
    assert (last.committed, last.counts["failed"], last.failures.count()) == (False, 7, 7)


def test_spark_connect_is_told_what_to_do() -> None:
    class Connected:
        """A session of Spark Connect has no JVM."""

    with pytest.raises(ConfigError, match="Spark Connect"):
        mama_spark.last_write(Connected())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Spark Connect"), write_progress.progress(Connected()):  # type: ignore[arg-type]
        pass
