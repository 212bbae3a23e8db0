"""A driver to be killed: an announced stream without an end, a few rows a second.

The argument is JSON: ``checkpoint``, ``options`` of mamapub.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[1]").appName("to be killed")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    rows = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    query = (
        rows.selectExpr("'orders.tick' AS topic", "cast(value AS string) AS value")
        .writeStream.format("mamapub")
        .options(**given["options"])
        .option("checkpointLocation", given["checkpoint"])
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
