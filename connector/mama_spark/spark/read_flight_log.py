"""Reads a flight log as a DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession


def flight_log(spark: SparkSession, path: str, committed_only: bool = False) -> DataFrame:
    """The flight log at ``path``. The session needs Delta (``configure_spark_with_delta_pip``, or ``--packages``).

    :param committed_only: without the attempts that failed or were superseded. A row that was published by a failed
        attempt and again by the next one is in the log twice, once with ``committed=false``.
    """
    log = spark.read.format("delta").load(path)
    return log.where("committed") if committed_only else log
