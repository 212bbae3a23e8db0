"""The meter provider of tasks in the Spark image: ``metrics = "metrics_setup:provider"``.

Metrics are sent by OTLP to ``OTEL_EXPORTER_OTLP_METRICS_ENDPOINT``, such as
``http://prometheus:9090/api/v1/otlp/v1/metrics``.
"""

from __future__ import annotations

import os
import socket

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource


def provider() -> MeterProvider:
    """Called once in each worker process, which is an instance of its own: two with one name would overwrite the series
    of each other."""
    instance = f"{socket.gethostname()}:{os.getpid()}"
    resource = Resource.create({"service.name": "mama-executors", "service.instance.id": instance})
    return MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource=resource)
