"""Formats may be registered where Spark would find them anyway, and are found in threads where they are registered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mama_spark
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tests.support.spark.sink_harness import counts, flights


def test_registering_installed_formats_is_harmless_and_takes_the_defaults_of_the_session(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    session, log = spark.newSession(), tmp_path / "log"
    session.conf.set("spark.mama.url", "memory://registered")  # the default of what follows
    for _ in range(2):
        mama_spark.register(session)
    request.addfinalizer(lambda: mama_spark.register(spark))
    rows = session.range(100).selectExpr("concat('a.', id % 3) AS topic", "id AS n")
    rows.write.format("mamapub").option("flightLog", str(log)).mode("append").save()
    read = session.read.format("mamasub").option("topics", "a.>").load()
    assert read.count() == 0  # another process has another memory
    written: pa.Table = flights(log)
    assert counts(written, "event") == {"acked": 100}


def test_threads_write_side_by_side_once_they_are_registered(spark: SparkSession, tmp_path: Path) -> None:
    def write(n: int) -> int:
        rows = spark.range(50, numPartitions=1).selectExpr(f"'a.{n}' AS topic", "id AS n")
        writer = rows.write.format("mamapub").option("url", "memory://threads")
        writer.option("flightLog", str(tmp_path / f"log{n}")).mode("append").save()
        return len(flights(tmp_path / f"log{n}"))

    with (
        ThreadPoolExecutor(1) as threads,
        pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"),  # else nobody would need to register
    ):
        threads.submit(write, 0).result()
    with ThreadPoolExecutor(2, initializer=mama_spark.register, initargs=(spark,)) as threads:
        assert list(threads.map(write, (1, 2, 3))) == [50, 50, 50]
