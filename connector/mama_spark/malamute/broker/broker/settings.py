"""Settings of a broker, with the rules that select engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mama_spark.options.declare import option
from mama_spark.options.times import duration_or_none
from mama_spark.options.values import byte_size, integer, nonempty_text

from ..session.settings import SessionSettings
from .security import Security


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine of streams whose name matches the pattern; the first match applies."""

    pattern: bytes
    engine: str
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold passwords


def _texts(value: Any) -> str | tuple[str, ...]:
    """One text, or a list of at least one."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
        raise ValueError("must be a text, or a list of texts")
    return value if isinstance(value, str) else tuple(found)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The table ``[broker]`` and the settings from the other tables; times in seconds.

    :ivar engines: engines of streams by name; others are ``simple``
    :ivar security: authentication of clients
    """

    bind: str | tuple[str, ...] = option(
        "text or list of texts", _texts, "tcp://127.0.0.1:9999", "broker",
        "Endpoints: `tcp://*:9999` is on all interfaces, `tcp://[::1]:9999` is IPv6, also `ipc`; port `*` or 0: "
        "the system chooses.",
    )  # fmt: skip
    machine: SessionSettings = field(default_factory=SessionSettings)
    engines: tuple[EngineChoice, ...] = ()
    high_water: int = option(
        "integer", integer(1), 1000, "broker", "Messages that ZeroMQ holds for one client, in each direction."
    )
    max_message: int = option(
        "size", byte_size, 64 * 1024 * 1024, "broker",
        "Largest frame; a larger one disconnects its client.", shown="64 MiB",
    )  # fmt: skip
    linger: float = option(
        "duration", duration_or_none, 5.0, "broker",
        "Longest wait of a clean stop for clients.", shown="5s",
    )  # fmt: skip
    security: Security = field(default_factory=Security)
    metrics: str | None = option(
        "text", nonempty_text, None, "broker",
        "`host:port` of an HTTP server: `/metrics`, `/clients`, `/streams`.",
        shown="none",
    )  # fmt: skip
    report: float = option(
        "duration", duration_or_none, 0.0, "broker", "Interval of the lines of `mama broker`; 0: none."
    )

    @property
    def endpoints(self) -> tuple[str, ...]:
        """All endpoints to bind, one or more."""
        return (self.bind,) if isinstance(self.bind, str) else self.bind
