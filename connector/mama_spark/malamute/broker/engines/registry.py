"""Stream engines by name: built in, registered, or by a package's entry point ``mama_spark.stream_engines``. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mama_spark.contracts.errors import ConfigError

from .base import StreamEngine

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "mama_spark.stream_engines"
_BUILT_IN = {
    "simple": "mama_spark.malamute.broker.engines.simple:SimpleEngine",
    "durable": "mama_spark.malamute.broker.engines.durable.engine:DurableEngine",
    "jetstream": "mama_spark.malamute.broker.engines.jetstream.engine:JetStreamEngine",
}
_registered: dict[str, type[StreamEngine]] = {}


def register(name: str, engine: type[StreamEngine]) -> None:
    """An engine takes precedence over others of its name."""
    if not (isinstance(engine, type) and issubclass(engine, StreamEngine)):
        raise ConfigError(f"engine {name!r} is no StreamEngine: {engine!r}")
    _registered[name] = engine


def names() -> list[str]:
    """Names of all engines that can be loaded."""
    return sorted({*_BUILT_IN, *_registered, *(e.name for e in _installed())})


def settings_classes() -> dict[str, type]:
    """The declared settings of the built-in engines that have some, by name of the engine."""
    found = {name: engine_class(name).settings_class for name in sorted(_BUILT_IN)}
    return {name: cls for name, cls in found.items() if cls is not None}


def engine_class(name: str) -> type[StreamEngine]:
    """The engine of this name.

    :raises ConfigError: there is none, or it cannot be loaded
    """
    if name in _registered:
        return _registered[name]
    try:
        if name in _BUILT_IN:
            module, _, cls = _BUILT_IN[name].partition(":")
            found: Any = getattr(import_module(module), cls)
        else:
            entry = next((e for e in _installed() if e.name == name), None)
            if entry is None:
                raise ConfigError(f"no stream engine {name!r}; there are {', '.join(names())}")
            found = entry.load()
    except (ImportError, AttributeError) as e:
        raise ConfigError(f"the stream engine {name!r} cannot be loaded: {e}") from e
    register(name, found)
    return _registered[name]


def _installed() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and few brokers need it

    return entry_points(group=GROUP)
