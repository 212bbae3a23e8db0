"""What a broker is told, and which engine a stream gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..session.clients import SessionSettings
from .security import Security


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Streams whose name the pattern matches get this engine; the first that matches counts."""

    pattern: bytes
    engine: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """:ivar bind: endpoint; with port ``*`` or 0 the system chooses
    :ivar engines: for streams by name; others are ``simple``
    :ivar high_water: messages that ZeroMQ may hold for one client, in each direction; beyond, TCP and our queues hold
    :ivar max_message: octets of one frame; a client that sends a larger one is disconnected
    :ivar linger: seconds that a clean stop waits for clients to take what is theirs
    :ivar security: who may connect
    :ivar metrics: ``host:port`` at which metrics and lists are served over HTTP (:mod:`.metrics`); None = nowhere
    """

    bind: str = "tcp://127.0.0.1:9999"
    machine: SessionSettings = field(default_factory=SessionSettings)
    engines: tuple[EngineChoice, ...] = ()
    high_water: int = 1000
    max_message: int = 64 * 1024 * 1024
    linger: float = 5.0
    security: Security = field(default_factory=Security)
    metrics: str | None = None
    report: float = 0.0  #: seconds between lines of ``mama broker`` that say how it is; 0 = none
