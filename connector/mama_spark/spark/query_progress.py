"""Logs, and exports as metrics, the progress of streaming queries over the formats of this package."""

from __future__ import annotations

import logging
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from .lag import lag

logger = logging.getLogger("mama_spark")


class QueryProgress(StreamingQueryListener):
    """One line of the log after each micro-batch: rows, rate, duration, lag of each stream::

        spark.streams.addListener(mama_spark.QueryProgress())

    With ``metrics`` the same goes to OpenTelemetry (extra ``otel``): counters ``mama.query.rows`` and
    ``mama.query.batches``, histogram ``mama.query.batch.duration``, and up-down counter ``mama.query.lag`` by stream.

    :param metrics: as the option of ``mamapub``: ``off``, ``otel`` or ``module:function``
    :raises ConfigError: the extra, or the function, is not there
    """

    def __init__(self, metrics: str = "off") -> None:
        self._lags: dict[tuple[str, str], int] = {}
        self._instruments: dict[str, Any] = {}
        if metrics != "off":
            from ..telemetry.provider import meter_provider

            meter = meter_provider(metrics).get_meter("mama_spark")
            self._instruments = {
                "rows": meter.create_counter("mama.query.rows", unit="{row}"),
                "batches": meter.create_counter("mama.query.batches", unit="{batch}"),
                "duration": meter.create_histogram("mama.query.batch.duration", unit="s"),
                "lag": meter.create_up_down_counter("mama.query.lag", unit="{message}"),
            }

    def onQueryStarted(self, event: Any) -> None:
        logger.info("query %s started", event.name or event.id)

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        name, lags = progress.name or str(progress.id), lag(progress)
        behind = ", ".join(f"{stream} {number:,} behind" for stream, number in lags.items())
        logger.info(
            "query %s, batch %s: %s rows, %.0f rows/s, %.1f s%s", name, progress.batchId, f"{progress.numInputRows:,}",
            progress.processedRowsPerSecond, progress.batchDuration / 1000, f"; {behind}" if behind else "",
        )  # fmt: skip
        if self._instruments:
            self._export(name, progress, lags)

    def _export(self, name: str, progress: Any, lags: dict[str, int]) -> None:
        about = {"query": name}
        self._instruments["rows"].add(progress.numInputRows, about)
        self._instruments["batches"].add(1, about)
        self._instruments["duration"].record(progress.batchDuration / 1000, about)
        for stream, number in lags.items():
            self._instruments["lag"].add(number - self._lags.get((name, stream), 0), {**about, "stream": stream})
            self._lags[name, stream] = number

    def onQueryIdle(self, event: Any) -> None:
        """Nothing has come."""

    def onQueryTerminated(self, event: Any) -> None:
        if event.exception:
            logger.warning("query %s ended: %s", event.id, str(event.exception).splitlines()[0])
        else:
            logger.info("query %s ended", event.id)
