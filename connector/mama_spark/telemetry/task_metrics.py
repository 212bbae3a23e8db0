"""Exports what publishers of partitions and reading tasks count, where the option ``metrics`` asks for it.

No object a message, so that the cost does not depend on the rate: counters are added as differences, and histograms are
of a sample: at most :data:`MOST_SAMPLES` latencies of each batch of flights, or one value of each batch of records.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from mama_spark.contracts.bridge import BridgeEvent, EventKind
from mama_spark.contracts.errors import ConfigError, PublishError
from mama_spark.contracts.message import payload_sizes
from mama_spark.contracts.record_log import Records
from mama_spark.options import ReadOptions, SinkOptions
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch, FlightCounters

if TYPE_CHECKING:
    from mama_spark.publishing.batch_publisher import BatchPublisher

#: Seconds that an export at the end may take.
FLUSH_TIMEOUT = 2.0
#: Seconds between two looks at the counters.
UPDATE_INTERVAL = 1.0
#: Latencies that are recorded of a batch of flights.
MOST_SAMPLES = 16
#: Seconds.
_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_FETCH_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_DELAY_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
_LOSSES = "connection.losses"
#: Counters of a publisher: unit, what it says.
_PUBLISHED = {
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
#: Counters of a reader: unit, what it says.
_READ = {
    "messages": ("{message}", "messages that were read"),
    "payload": ("By", "bytes of their payloads, as they are stored"),
    "rows": ("{row}", "rows that they became"),
    "undecodable": ("{message}", "messages that could not be decoded, unpacked or decompressed"),
    _LOSSES: ("{connection}", "lost connections, and servers that did not answer"),
}


@cache  # a worker of Spark runs many tasks, and one exporter
def meter_provider(setup: str) -> Any:
    """The provider that ``setup`` makes.

    :param setup: ``otel``: the one of the process, as ``OTEL_PYTHON_METER_PROVIDER`` or the program has chosen it;
        ``module:function``: what the function returns, which is called once in each process
    :raises ConfigError: OpenTelemetry or the function is not there
    """
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError as e:
        raise ConfigError(f"option metrics needs OpenTelemetry ({e}); try: pip install 'mama-spark[otel]'") from e
    if setup == "otel":
        return metrics.get_meter_provider()
    module, _, function = setup.partition(":")
    try:
        provider = getattr(import_module(module), function)()
    except (ImportError, AttributeError) as e:
        raise ConfigError(f"option metrics: {setup!r} cannot be called on an executor: {e}") from e
    if not hasattr(provider, "get_meter"):
        raise ConfigError(f"option metrics: {setup!r} must return a MeterProvider, and returned {provider!r}")
    return provider


def counters(
    meter: Any, prefix: str, declared: Mapping[str, tuple[str, str]], attributes: Mapping[str, str]
) -> dict[str, Any]:
    """Counters by name (``prefix``, and the key of ``declared``: unit, what it says). They begin at 0: a rate of what
    never happened is 0, and not nothing."""
    made = {n: meter.create_counter(prefix + n, unit=unit, description=text) for n, (unit, text) in declared.items()}
    for counter in made.values():
        counter.add(0, attributes)
    return made


def flush(provider: Any) -> None:
    """Export what was counted, for at most :data:`FLUSH_TIMEOUT`; a worker of Spark may be killed after its task."""
    force = getattr(provider, "force_flush", None)
    if force is not None:
        force(timeout_millis=int(FLUSH_TIMEOUT * 1000))


class PublisherMetrics:
    """:meth:`update` now and then and at the end, :meth:`finished` with settled flights; few different attributes."""

    def __init__(self, meter: Any, attributes: dict[str, str]) -> None:
        self._attributes, self._before = attributes, FlightCounters()
        self._counters = counters(meter, "mama.publisher.", _PUBLISHED, attributes)
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
            explicit_bucket_boundaries_advisory=_LATENCY_BUCKETS,
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
        self._reconnects.add(1, self._attributes)


def _status(error: PublishError | None) -> str:
    return "TIMEOUT" if error is None else error.status


class PartitionMetrics:
    """OpenTelemetry metrics of one partition's publisher.

    Call :meth:`start` with the publisher, then :meth:`stop`. The publisher calls the others.

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
        """Called on the publisher's thread."""
        self._metrics.finished(flights)
        self._record(flights)

    def on_event(self, event: BridgeEvent) -> None:
        """Called on the publisher's thread."""
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


class ReadMetrics:
    """Metrics of one task; :meth:`close` at its end.

    :param stream: stream that is read; empty = several
    :raises ConfigError: OpenTelemetry, or the function that the option names, is not there
    """

    def __init__(self, o: ReadOptions, format: str, stream: str) -> None:
        self._provider = meter_provider(o.metrics)
        self._attributes = {"format": format, "bridge": o.bridge_name, "stream": stream}
        meter = self._provider.get_meter("mama_spark")
        self._counters = counters(meter, "mama.reader.", _READ, self._attributes)
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
        self.count(_LOSSES, 1)

    def count(self, name: str, number: int) -> None:
        """Add to the counter ``messages``, ``payload``, ``rows``, ``undecodable`` or ``connection.losses``."""
        if number:
            self._counters[name].add(number, self._attributes)

    def close(self) -> None:
        flush(self._provider)
