"""Logs, and exports as metrics, the progress of streaming queries over the formats of this package, and their lag."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

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
            from ..telemetry.task_metrics import meter_provider

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
        """Ignored: no progress."""

    def onQueryTerminated(self, event: Any) -> None:
        if event.exception:
            logger.warning("query %s ended: %s", event.id, str(event.exception).splitlines()[0])
        else:
            logger.info("query %s ended", event.id)


def lag(of: Any) -> dict[str, int]:
    """Messages of each stream that a query had not read when its last micro-batch was planned::

        mama_spark.lag(query)                          # {"ORDERS": 1200}

        class Lag(StreamingQueryListener):             # after each micro-batch
            def onQueryProgress(self, event):
                print(mama_spark.lag(event.progress))

    All messages of a stream count, whether they match ``topics`` or not. Empty before the first progress, and for
    sources that are not ``mamasub``. It is computed from the offsets that Spark reports, because Spark takes no metrics
    from a Python source (``sources[].metrics`` is empty).

    :param of: a streaming query, or its progress
    """
    progress = getattr(of, "lastProgress", of)
    if progress is None:
        return {}
    sources = progress.get("sources") if isinstance(progress, Mapping) else getattr(progress, "sources", None)
    if sources is None:
        raise TypeError(f"lag() takes a streaming query or its progress, and not {of!r}")
    found: dict[str, int] = {}
    for source in sources:
        for stream, behind in _behind(_offsets(source, "endOffset"), _offsets(source, "latestOffset")):
            found[stream] = found.get(stream, 0) + behind
    return found


def _behind(read: Mapping[str, Any], latest: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for stream, end in latest.items():
        if isinstance(end, Mapping) and {"next", "identity"} <= end.keys():
            at = read.get(stream) or {}
            same = at.get("identity") == end["identity"]  # else it is a new one, and nothing is read
            yield stream, max(0, int(end["next"]) - (int(at["next"]) if same else 1))


def _offsets(source: Any, name: str) -> Mapping[str, Any]:
    """JSON, or what was parsed from it; empty if the source has no such offset."""
    value = source.get(name) if isinstance(source, Mapping) else getattr(source, name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}
