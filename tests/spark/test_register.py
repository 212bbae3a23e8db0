"""Formats may be registered where Spark would find them anyway."""

from __future__ import annotations

from pathlib import Path

import mama_spark
import pyarrow as pa
from pyspark.sql import SparkSession

from tests.support.sink_harness import counts, flights


def test_registering_installed_formats_is_harmless(spark: SparkSession, tmp_path: Path) -> None:
    session, log = spark.newSession(), tmp_path / "log"
    for _ in range(2):
        mama_spark.register(session)
    rows = session.range(100).selectExpr("concat('a.', id % 3) AS topic", "id AS n")
    writer = rows.write.format("mamapub").option("url", "memory://registered").option("flightLog", str(log))
    writer.mode("append").save()
    written: pa.Table = flights(log)
    assert counts(written, "event") == {"acked": 100}
