"""Exports what one partition's publisher counts, where the option ``metrics`` asks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from mama_spark.contracts.bridge import BridgeEvent, EventKind
from mama_spark.options import SinkOptions

if TYPE_CHECKING:
    from mama_spark.publishing.batch_publisher import BatchPublisher
    from mama_spark.publishing.window.flight_batch import FlightBatch

#: Seconds between two looks at the counters; that an export at the end may take.
UPDATE_INTERVAL, FLUSH_TIMEOUT = 1.0, 2.0


class PartitionMetrics:
    """:meth:`start` with the publisher, then :meth:`stop`. The publisher calls the others.

    :param record: called with the same flights
    :param on_event: called with the same events
    :raises ConfigError: OpenTelemetry, or the function that the option names, is not there
    """

    def __init__(
        self,
        o: SinkOptions,
        record: Callable[[FlightBatch], None],
        on_event: Callable[[BridgeEvent], None],
    ) -> None:
        from mama_spark.telemetry.provider import meter_provider
        from mama_spark.telemetry.publisher_metrics import PublisherMetrics

        self._provider = meter_provider(o.metrics)
        attributes = {"bridge": o.bridge_name, "stream": o.stream or ""}
        self._metrics = PublisherMetrics(self._provider.get_meter("mama_spark"), attributes)
        self._record, self._on_event = record, on_event
        self._stop = threading.Event()
        self._publisher: BatchPublisher | None = None
        self._thread = threading.Thread(target=self._run, name="mama-metrics", daemon=True)

    def start(self, publisher: BatchPublisher) -> None:
        self._publisher = publisher
        self._thread.start()

    def on_finished(self, flights: FlightBatch) -> None:
        """On the publisher's thread."""
        self._metrics.finished(flights)
        self._record(flights)

    def on_event(self, event: BridgeEvent) -> None:
        """On the publisher's thread."""
        if event.kind is EventKind.DISCONNECTED:
            self._metrics.lost_connection()
        self._on_event(event)

    def stop(self) -> None:
        """After the publisher has ended."""
        from mama_spark.telemetry.provider import flush

        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        flush(self._provider, FLUSH_TIMEOUT)

    def _run(self) -> None:
        ended = False
        while not ended and self._publisher is not None:
            ended = self._stop.wait(UPDATE_INTERVAL)
            self._metrics.update(self._publisher.counters, self._publisher.window.in_flight)
