"""Reads a flight log as a DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from ..contracts.errors import FlightLogError

_FORMAT = "delta"


def flight_log(spark: SparkSession, path: str, committed_only: bool = False) -> DataFrame:
    """The flight log at ``path``; a notebook shows its summary, its rate and its latest failures.

    The session needs Delta (``configure_spark_with_delta_pip``, or ``--packages``).

    :param committed_only: without the attempts that failed or were superseded. A row that was published by a failed
        attempt and again by the next one is in the log twice, once with ``committed=false``.
    :raises FlightLogError: the session has no Delta
    """
    try:
        log = spark.read.format(_FORMAT).load(path)
    except Exception as e:
        if "DATA_SOURCE_NOT_FOUND" not in str(e):
            raise
        raise FlightLogError(
            f"{path}: a flight log is a Delta table, and this session has no Delta: start it with "
            'spark-submit --jars "$(mama jobs --delta-jars)" or configure_spark_with_delta_pip, or read the table with '
            "deltalake.DeltaTable"
        ) from e
    if committed_only:
        log = log.where("committed")
    shown = getattr(log, "_repr_html_", lambda: None)
    log._repr_html_ = lambda: _view(path) or shown()  # type: ignore[method-assign]  # IPython asks the object itself
    return log


def _view(path: str) -> str | None:
    from .flight_log_view import as_html

    return as_html(path)
