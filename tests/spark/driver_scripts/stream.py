"""A driver to be killed: publish the JSON files of a folder as a stream, a file a micro-batch, and end.

The argument is JSON: ``input``, ``checkpoint``, ``options`` of mamapub.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2,4]").appName("to be killed")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    rows = spark.readStream.schema("topic STRING, value STRING").option("maxFilesPerTrigger", 1).json(given["input"])
    query = (
        rows.repartition(2)
        .writeStream.format("mamapub")
        .options(**given["options"])
        .option("checkpointLocation", given["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
