"""Exports what a reading task counts, where the option ``metrics`` asks for it: counters, and histograms of one value a
batch of some thousand records, so that the cost does not depend on the rate."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from mama_spark.contracts.message import payload_sizes
from mama_spark.contracts.record_log import Records
from mama_spark.options import ReadOptions

from .provider import counters, flush, meter_provider

#: Seconds.
_FETCH_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_DELAY_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
#: Counter -> unit, what it says.
_COUNTERS = {
    "messages": ("{message}", "messages that were read"),
    "payload": ("By", "bytes of their payloads, as they are stored"),
    "rows": ("{row}", "rows that they became"),
    "undecodable": ("{message}", "messages that could not be decoded, unpacked or decompressed"),
    "connection.losses": ("{connection}", "lost connections, and servers that did not answer"),
}


class ReadMetrics:
    """Of one task; :meth:`close` at its end.

    :param format: the name of the format
    :param stream: that is read; empty = several
    :raises ConfigError: OpenTelemetry, or the function that the option names, is not there
    """

    def __init__(self, o: ReadOptions, format: str, stream: str) -> None:
        self._provider = meter_provider(o.metrics)
        self._attributes = {"format": format, "bridge": o.bridge_name, "stream": stream}
        meter = self._provider.get_meter("mama_spark")
        self._counters = counters(meter, "mama.reader.", _COUNTERS, self._attributes)
        self._fetch = meter.create_histogram(
            "mama.reader.fetch.duration", unit="s", description="wait for the next batch of messages",
            explicit_bucket_boundaries_advisory=_FETCH_BUCKETS,
        )  # fmt: skip
        self._delay = meter.create_histogram(
            "mama.reader.delay", unit="s", description="from storing a message to reading it, of the last of a batch",
            explicit_bucket_boundaries_advisory=_DELAY_BUCKETS,
        )  # fmt: skip

    def watched(self, batches: Iterable[Records]) -> Iterator[Records]:
        """The same batches, measured; empty ones are not counted."""
        iterator, asked = iter(batches), time.perf_counter()
        for records in iterator:
            if len(records):
                self._fetch.record(time.perf_counter() - asked, self._attributes)
                # Time of day: is compared with the times of messages, which another machine may have given.
                delay = time.time() - int(records.times[-1]) / 1e6
                self._delay.record(max(0.0, delay), self._attributes)
                self.count("messages", len(records))
                self.count("payload", int(payload_sizes(records.payloads).sum()))
            yield records
            asked = time.perf_counter()

    def lost_connection(self) -> None:
        self.count("connection.losses", 1)

    def count(self, name: str, number: int) -> None:
        """
        :param name: ``messages``, ``payload``, ``rows``, ``undecodable`` or ``connection.losses``
        """
        if number:
            self._counters[name].add(number, self._attributes)

    def close(self) -> None:
        """Export what was counted."""
        flush(self._provider)
