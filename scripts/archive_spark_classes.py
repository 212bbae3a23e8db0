"""Write an archive of the Java classes that Spark loads: ``python scripts/archive_spark_classes.py ARCHIVE``.

A JVM of the tests that maps it (``-XX:SharedArchiveFile``) neither parses nor verifies these classes when it starts.
Java itself checks that the archive was made by this Java from these jars, and loads the classes from the jars if not.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def use(spark: SparkSession, folder: Path) -> None:
    """Load what most tests load: Delta tables, a query with a shuffle, a stream, rows that pass through Python."""
    spark.range(100).selectExpr("id", "id % 3 AS k").write.format("delta").save(f"{folder}/table")
    rows = spark.read.format("delta").load(f"{folder}/table")
    rows.groupBy("k").count().collect()
    rows.mapInArrow(same, rows.schema).collect()
    stream = spark.readStream.format("delta").load(f"{folder}/table").writeStream.format("delta")
    stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    stream.start(f"{folder}/copy").awaitTermination()


def main() -> None:
    # the JVM writes the archive when it ends; made by the compiler and collector that `make test-all` uses
    os.environ["JDK_JAVA_OPTIONS"] = (
        f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -XX:ArchiveClassesAtExit={sys.argv[1]}"
    )
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config(
        "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    )
    with tempfile.TemporaryDirectory() as folder:
        spark = configure_spark_with_delta_pip(builder.config("spark.sql.warehouse.dir", folder)).getOrCreate()
        use(spark, Path(folder))
        gateway: Any = spark.sparkContext._gateway
        spark.stop()
        gateway.proc.stdin.close()  # which ends the JVM
        gateway.proc.wait()


if __name__ == "__main__":
    main()
