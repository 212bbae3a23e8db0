"""An application for a cluster: publish ``rows`` rows of 100 bytes in ``partitions`` partitions.

The argument is JSON: ``rows``, ``partitions``, and ``options`` of ``mamapub``.
"""

from __future__ import annotations

import json
import sys

import mama_spark
from pyspark.sql import SparkSession


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = SparkSession.builder.appName("many rows").getOrCreate()
    mama_spark.register(spark)
    numbers = spark.range(0, given["rows"], 1, given["partitions"])
    rows = numbers.selectExpr("concat('orders.r', id % 100) AS topic", "lpad(id, 100, '.') AS value")
    rows.write.format("mamapub").options(**given["options"]).mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main()
