"""A driver to be killed: publish the JSON files of a folder as a stream, a file a micro-batch, and end; the last rows
of a large file wait until a gate is open.

The argument is JSON: ``folder`` (with ``input``, checkpoint and gate), ``options`` of ``mamapub``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.spark.sink_harness import WriteGate

SCHEMA = "topic STRING, value STRING"


def start(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    folder = Path(given["folder"])
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "input")).repartition(2)
    return (
        rows.mapInArrow(WriteGate(folder).before_the_end, SCHEMA)
        .writeStream.format("mamapub")
        .options(**given["options"])
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def main() -> None:
    builder = SparkSession.builder.master("local[2,4]").appName("to be killed")
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "200",  # what the gate holds back
        "spark.sql.execution.pandas.udf.buffer.size": "4096",  # and what Spark keeps until there is more
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    start(spark, json.loads(sys.argv[1])).awaitTermination()  # and is not withdrawn in the end, whatever ends it
    spark.stop()


if __name__ == "__main__":
    main()
