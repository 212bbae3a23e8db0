"""Metrics of a program, and their text for Prometheus.

Programs do not count by OpenTelemetry, as tasks do (:mod:`.task_metrics`): Prometheus asks them, so they need no
exporter, which would add to the names and labels of the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mama_spark.contracts.errors import ConfigError

#: Content type of :func:`exposition`.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


class Metric(NamedTuple):
    """A counter if its name ends with ``_total``, and else a gauge; ``samples``: value by labels."""

    name: str
    help: str
    samples: tuple[tuple[Labels, float], ...]

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


def measured(prefix: str, helps: Mapping[str, str], values: Iterable[float], labels: Mapping[str, str]) -> list[Metric]:
    """Metrics of one sample each; ``helps``: help text by the name after ``prefix``; ``values`` in their order."""
    sample = tuple(labels.items())
    return [Metric(prefix + name, text, ((sample, n),)) for (name, text), n in zip(helps.items(), values, strict=True)]


def exposition(metrics: Iterable[Metric]) -> str:
    """The metrics in the text format of Prometheus, :data:`CONTENT_TYPE`.

    :raises ConfigError: the library prometheus-client is not installed
    """
    client = prometheus_client()
    registry = client.CollectorRegistry()
    registry.register(_Collector(metrics))
    text: str = client.generate_latest(registry).decode()
    return text


def prometheus_client() -> Any:
    """The library prometheus-client, imported on first use.

    :raises ConfigError: it is not installed
    """
    try:
        import prometheus_client
    except ImportError as e:
        raise ConfigError('metrics need the library prometheus-client: pip install "mama-spark[prometheus]"') from e
    return prometheus_client


class _Collector:
    """A snapshot of metrics in the library's collector interface."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import Metric as Family

        for metric in self._metrics:
            family = Family(metric.name.removesuffix("_total"), metric.help, metric.kind)  # the library adds the suffix
            for labels, value in metric.samples:
                family.add_sample(metric.name, dict(labels), value)
            yield family
