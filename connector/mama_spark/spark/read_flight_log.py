"""Reads a flight log as a DataFrame, which a notebook shows as summary, plot and latest failures."""

from __future__ import annotations

import html
from collections.abc import Iterator
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from ..contracts.errors import FlightLogError, MamaError
from ..contracts.redaction import redact

_FORMAT = "delta"
MOST_FAILURES = 5
_CAPTION = "Rows acknowledged a second. Healthy: a level band without points and without shades."


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
    log._repr_html_ = lambda: as_html(path) or shown()  # type: ignore[method-assign]  # IPython asks the object itself
    return log


def as_html(path: str) -> str | None:
    """HTML for a notebook, without the plot where the extra ``report`` is missing; None = delta-rs cannot read the log,
    which Spark perhaps can."""
    try:
        parts = list(_parts(path))
    except MamaError:
        return None
    return "".join(parts)


def _parts(path: str) -> Iterator[str]:
    from ..flightlog import reading as flights  # delta-rs, which reading by Spark does not need

    summary = flights.summarise(path, {})
    yield f"<pre>{html.escape(redact(chr(10).join(summary.head())))}</pre>"
    plot = _plot(path)
    if plot:
        yield f"<figure style='margin:0'>{plot}<figcaption>{html.escape(_CAPTION)}</figcaption></figure>"
    failures = flights.failed(path, {}, MOST_FAILURES)
    if failures:
        names = ("event_time", "status", "info", "topic", "flight_id", "committed")
        heads = "".join(f"<th>{name}</th>" for name in names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(redact(_shown(row[name])))}</td>" for name in names) + "</tr>"
            for row in failures
        )
        yield f"<p>The latest failures:</p><table><tr>{heads}</tr>{rows}</table>"


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def _plot(path: str) -> str:
    try:
        from ..report import charts
        from ..report.data import read_report
    except ModuleNotFoundError:
        return ""
    # Time of day: the time of the report.
    data = read_report(path, {}, datetime.now(UTC))
    return charts.rate(data) if data.timeline else ""
