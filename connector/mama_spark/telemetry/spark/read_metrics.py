"""Exports what a reading task counts, where the option ``metrics`` asks for it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from mama_spark.contracts.message import payload_sizes
from mama_spark.contracts.record_log import Records
from mama_spark.options import ReadOptions
from mama_spark.telemetry.provider import flush, meter_provider
from mama_spark.telemetry.reader_metrics import ReaderMetrics

#: Seconds that an export at the end may take.
FLUSH_TIMEOUT = 2.0


class ReadMetrics:
    """Of one task; :meth:`close` at its end.

    :param format: the name of the format
    :param stream: that is read; empty = several
    :raises ConfigError: OpenTelemetry, or the function that the option names, is not there
    """

    def __init__(self, o: ReadOptions, format: str, stream: str) -> None:
        self._provider = meter_provider(o.metrics)
        attributes = {"format": format, "bridge": o.bridge_name, "stream": stream}
        self._metrics = ReaderMetrics(self._provider.get_meter("mama_spark"), attributes)

    def watched(self, batches: Iterable[Records]) -> Iterator[Records]:
        """The same batches, measured; empty ones are not counted."""
        iterator, asked = iter(batches), time.perf_counter()
        for records in iterator:
            if len(records):
                now = time.perf_counter()
                # Time of day: is compared with the times of messages.
                self._metrics.fetched(now - asked, time.time() - int(records.times[-1]) / 1e6)
                self._metrics.add("messages", len(records))
                self._metrics.add("payload", int(payload_sizes(records.payloads).sum()))
            yield records
            asked = time.perf_counter()

    def lost_connection(self) -> None:
        self._metrics.add("connection.losses", 1)

    def count(self, name: str, number: int) -> None:
        """As :meth:`ReaderMetrics.add`."""
        self._metrics.add(name, number)

    def close(self) -> None:
        """Export what was counted."""
        flush(self._provider, FLUSH_TIMEOUT)
