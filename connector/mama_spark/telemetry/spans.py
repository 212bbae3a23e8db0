"""The spans of a write's partition, whose context its messages carry, and of a reading task, with links to traces."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from mama_spark.contracts.errors import ConfigError
from mama_spark.options import SinkOptions, SubscribeOptions

#: Links of one span, as many as SDKs of OpenTelemetry keep.
MOST_LINKS = 128
ENVIRONMENT = {"traceparent": "TRACEPARENT", "tracestate": "TRACESTATE"}


class PublishSpan:
    """Begins now; :meth:`end` when the partition is published.

    :param parent: ``traceparent`` of the span's parent; None: that of the environment, if there is one
    :raises ConfigError: OpenTelemetry is not there, or there is no trace
    :ivar parent, state: ``traceparent`` and ``tracestate`` for the messages
    """

    def __init__(self, o: SinkOptions, partition: int, parent: str | None) -> None:
        trace, propagator = _opentelemetry()
        carrier = {"traceparent": parent} if parent is not None else _environment()
        context = propagator.extract(carrier)
        about = {"messaging.system": o.bridge_name, "messaging.operation.type": "send", "mama.partition": partition}
        tracer = trace.get_tracer("mama_spark")
        self._span = tracer.start_span("send", context, kind=trace.SpanKind.PRODUCER, attributes=about)
        found: dict[str, str] = {}
        propagator.inject(found, trace.set_span_in_context(self._span))
        if not found:  # without a provider, older releases of OpenTelemetry make spans that leave the trace
            propagator.inject(found, context)
        if "traceparent" not in found:
            raise ConfigError(
                "option traceContext=true finds no trace: this executor has no tracer provider (of OpenTelemetry; the "
                "function of option metrics may set one), and no environment variable TRACEPARENT. Set one of them, or "
                "give traceContext=mama_spark.trace_context()"
            )
        self.parent, self.state = found["traceparent"], found.get("tracestate")

    def end(self, error: BaseException | None, fatal: str | None) -> None:
        """End the span; ``error`` ends the task, ``fatal``: why the write cannot succeed."""
        if error is not None:
            self._span.record_exception(error)
        if error is not None or fatal is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, fatal or type(error).__name__))
        self._span.end()


class ReceiveSpan:
    """OpenTelemetry span of one read; begins when made. Call :meth:`add` with the traces of messages, then :meth:`end`.

    :raises ConfigError: OpenTelemetry is not installed
    """

    def __init__(self, o: SubscribeOptions, stream: str) -> None:
        self._trace, self._propagator = _opentelemetry()
        about = {
            "messaging.system": o.bridge_name, "messaging.operation.type": "receive",
            "messaging.destination.name": stream,
        }  # fmt: skip
        tracer = self._trace.get_tracer("mama_spark")
        self._span = tracer.start_span("receive", kind=self._trace.SpanKind.CONSUMER, attributes=about)
        self._seen: set[str] = set()

    def add(self, traces: pa.Array) -> None:
        """Link the span to :data:`MOST_LINKS` of these ``traceparent`` at most; null: a message has none."""
        if len(self._seen) >= MOST_LINKS:
            return
        for text in traces.unique().to_pylist():
            if text is not None and text not in self._seen and len(self._seen) < MOST_LINKS:
                self._seen.add(text)
                context = self._propagator.extract({"traceparent": text})
                self._span.add_link(self._trace.get_current_span(context).get_span_context())

    def end(self) -> None:
        self._span.end()


def _opentelemetry() -> tuple[Any, Any]:
    """The module ``opentelemetry.trace`` and the propagator of W3C trace context.

    :raises ConfigError: it is not installed
    """
    try:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ModuleNotFoundError as e:
        raise ConfigError(f"option traceContext needs OpenTelemetry ({e}); try: pip install 'mama-spark[otel]'") from e
    return trace, TraceContextTextMapPropagator()


def _environment() -> dict[str, str]:
    return {key: os.environ[name] for key, name in ENVIRONMENT.items() if os.environ.get(name)}


def trace_context() -> str:
    """``traceparent`` of the span that is current here, for the option ``traceContext``; ``off`` where there is none.

    ::

        df.write.format("mamapub").option("traceContext", mama_spark.trace_context())

    :raises ConfigError: OpenTelemetry is not installed
    """
    found: dict[str, str] = {}
    _opentelemetry()[1].inject(found)
    return found.get("traceparent", "off")
