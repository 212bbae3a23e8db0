"""Metrics of a program, and their text for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mama_spark.contracts.errors import ConfigError

#: Content type of :func:`exposition`.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


class Metric(NamedTuple):
    """:ivar kind: ``counter`` or ``gauge``
    :ivar samples: value by labels
    """

    name: str
    kind: str
    help: str
    samples: tuple[tuple[Labels, float], ...]


def counter(name: str, help: str, value: float, labels: Mapping[str, str]) -> Metric:
    """A counter of one sample; its name ends with ``_total``."""
    return Metric(name, "counter", help, ((tuple(labels.items()), value),))


def gauge(name: str, help: str, value: float, labels: Mapping[str, str]) -> Metric:
    """A gauge of one sample."""
    return Metric(name, "gauge", help, ((tuple(labels.items()), value),))


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

        for name, kind, help, samples in self._metrics:
            family = Family(name.removesuffix("_total"), help, kind)  # the library adds the suffix
            for labels, value in samples:
                family.add_sample(name, dict(labels), value)
            yield family
