"""A driver to be killed again and again: publish the JSON files of a folder as a stream of one micro-batch a file.

The argument is JSON: ``folder`` (with ``input`` and checkpoint), ``options`` of ``mamapub``, ``cores``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "topic STRING, value STRING"


def start(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    folder, cores = Path(given["folder"]), int(given["cores"])
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "input"))
    return (
        rows.repartition(cores)
        .writeStream.format("mamapub")
        .options(**given["options"])
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def main() -> None:
    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(f"local[{given['cores']},4]").appName("repeated")
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    start(spark, given).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
