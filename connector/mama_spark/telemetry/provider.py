"""The meter by which tasks and queries export what they count."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from ..contracts.errors import ConfigError

#: Seconds that an export at the end may take.
FLUSH_TIMEOUT = 2.0


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
    """Counters by name, which begin at 0: a rate of what never happened is 0, and not nothing.

    :param declared: unit, and what it says, by the name behind ``prefix``
    """
    made = {n: meter.create_counter(prefix + n, unit=unit, description=text) for n, (unit, text) in declared.items()}
    for counter in made.values():
        counter.add(0, attributes)
    return made


def flush(provider: Any) -> None:
    """Export what was counted, for at most :data:`FLUSH_TIMEOUT`; a worker of Spark may be killed after its task."""
    force = getattr(provider, "force_flush", None)
    if force is not None:
        force(timeout_millis=int(FLUSH_TIMEOUT * 1000))
