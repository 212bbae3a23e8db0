"""Exports what one partition's publisher counts, where the option ``metrics`` asks for it: counters from what the
window counts, a histogram of latencies from a sample.

No object a message: counters are added as differences, and at most :data:`MOST_SAMPLES` latencies of each batch
of flights are recorded, so that the cost does not depend on the rate.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mama_spark.contracts.bridge import BridgeEvent, EventKind
from mama_spark.contracts.errors import PublishError
from mama_spark.options import SinkOptions
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch, FlightCounters

from .provider import counters, flush, meter_provider

if TYPE_CHECKING:
    from mama_spark.publishing.batch_publisher import BatchPublisher

#: Seconds between two looks at the counters.
UPDATE_INTERVAL = 1.0
#: Latencies that are recorded of a batch of flights.
MOST_SAMPLES = 16
#: Seconds.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LOSSES = "connection.losses"
#: Counter -> unit, what it says.
_COUNTERS = {
    "messages": ("{message}", "messages taken from Spark"),
    "acknowledged": ("{message}", "messages acknowledged"),
    "sends": ("{message}", "sends, resends included"),
    "resends": ("{message}", "messages sent again"),
    "duplicates": ("{message}", "messages that the middleware had already"),
    "holds": ("{message}", "times the server made the publisher wait"),
    _LOSSES: ("{connection}", "lost connections"),
}
#: Counter -> field of :class:`FlightCounters`, where they differ.
_FIELDS = {"messages": "opened", "acknowledged": "acked"}


class PublisherMetrics:
    """:meth:`update` now and then and at the end, :meth:`finished` with each batch of settled flights.

    :param meter: of OpenTelemetry
    :param attributes: of all measurements; few different values
    """

    def __init__(self, meter: Any, attributes: dict[str, str]) -> None:
        self._attributes, self._before = attributes, FlightCounters()
        self._counters = counters(meter, "mama.publisher.", _COUNTERS, attributes)
        self._reconnects = self._counters.pop(_LOSSES)
        self._failed = meter.create_counter(
            "mama.publisher.failed", unit="{message}", description="messages that failed or timed out, by status"
        )
        self._in_flight = meter.create_up_down_counter(
            "mama.publisher.in_flight", unit="{message}", description="messages without their outcome"
        )
        self._shown_in_flight = 0
        self._latency = meter.create_histogram(
            "mama.publisher.latency",
            unit="s",
            description="from the first send to the acknowledgement, of a sample",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )

    def update(self, counted: FlightCounters, in_flight: int) -> None:
        """Export what was counted since the last call."""
        for name, counter in self._counters.items():
            field = _FIELDS.get(name, name)
            now = getattr(counted, field)
            if now > (before := getattr(self._before, field)):
                counter.add(now - before, self._attributes)
                setattr(self._before, field, now)
        self._in_flight.add(in_flight - self._shown_in_flight, self._attributes)
        self._shown_in_flight = in_flight

    def finished(self, flights: FlightBatch) -> None:
        """Export latencies and failures of flights that all have their outcome."""
        acked = np.flatnonzero(flights.state == FlightState.ACKED)
        step = -(-len(acked) // MOST_SAMPLES) or 1
        latencies = (flights.settled - flights.published)[acked[::step]]
        for seconds in latencies[~np.isnan(latencies)].tolist():  # those that were stored already were not sent
            self._latency.record(seconds, self._attributes)
        failed = np.flatnonzero(flights.failed()).tolist()
        reasons = Counter(_status(flights.errors.get(row)) for row in failed)
        for status, number in reasons.items():
            self._failed.add(number, {**self._attributes, "status": status})

    def lost_connection(self) -> None:
        """The connection was lost."""
        self._reconnects.add(1, self._attributes)


def _status(error: PublishError | None) -> str:
    return "TIMEOUT" if error is None else error.status


class PartitionMetrics:
    """:meth:`start` with the publisher, then :meth:`stop`. The publisher calls the others.

    :param record: called with the same flights
    :param on_event: called with the same events
    :raises ConfigError: OpenTelemetry, or the function that the option names, is not there
    """

    def __init__(
        self, o: SinkOptions, record: Callable[[FlightBatch], None], on_event: Callable[[BridgeEvent], None]
    ) -> None:
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
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        flush(self._provider)

    def _run(self) -> None:
        ended = False
        while not ended and self._publisher is not None:
            ended = self._stop.wait(UPDATE_INTERVAL)
            self._metrics.update(self._publisher.counters, self._publisher.window.in_flight)
