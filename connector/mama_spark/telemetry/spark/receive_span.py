"""The span of one reading task, which links to the traces of its messages."""

from __future__ import annotations

import pyarrow as pa

from mama_spark.options import SubscribeOptions

from .publish_span import opentelemetry

#: Links of one span, as many as SDKs of OpenTelemetry keep.
MOST_LINKS = 128


class ReceiveSpan:
    """Begins now; :meth:`add` what was read, then :meth:`end`.

    :raises ConfigError: OpenTelemetry is not there
    """

    def __init__(self, o: SubscribeOptions, stream: str) -> None:
        self._trace, self._propagator = opentelemetry()
        about = {
            "messaging.system": o.bridge_name, "messaging.operation.type": "receive",
            "messaging.destination.name": stream,
        }  # fmt: skip
        tracer = self._trace.get_tracer("mama_spark")
        self._span = tracer.start_span("receive", kind=self._trace.SpanKind.CONSUMER, attributes=about)
        self._seen: set[str] = set()

    def add(self, traces: pa.Array) -> None:
        """
        :param traces: ``traceparent`` of some messages, null where one has none
        """
        if len(self._seen) >= MOST_LINKS:
            return
        for text in traces.unique().to_pylist():
            if text is not None and text not in self._seen and len(self._seen) < MOST_LINKS:
                self._seen.add(text)
                context = self._propagator.extract({"traceparent": text})
                self._span.add_link(self._trace.get_current_span(context).get_span_context())

    def end(self) -> None:
        self._span.end()
