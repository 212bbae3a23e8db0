"""Start one Spark session with Delta, so that its jars are in the cache of Ivy, and print their paths."""

from __future__ import annotations

from urllib.parse import urlparse

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession


def main() -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = configure_spark_with_delta_pip(builder).getOrCreate()
    for jar in spark.sparkContext.getConf().get("spark.jars", "").split(","):
        print(urlparse(jar).path)
    spark.stop()


if __name__ == "__main__":
    main()
