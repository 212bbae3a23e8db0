"""Selects the engine of a stream by the configured rules, before the stream is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mama_spark.contracts.errors import MamaError
from mama_spark.malamute.protocol.patterns import Pattern

from ..engines import engine_class, holds
from .settings import EngineChoice


def stores(engine: str) -> bool:
    """Whether the engine stores messages; False if it cannot be loaded, which is reported when a stream is opened."""
    try:
        return engine_class(engine).stored
    except MamaError:
        return False


class EngineSelector:
    """:param choices: the first with a matching pattern applies; other streams are ``simple``"""

    def __init__(self, choices: Sequence[EngineChoice]) -> None:
        self._choices = [(Pattern(choice.pattern), choice) for choice in choices]

    def choose(self, stream: bytes) -> tuple[str, Mapping[str, Any]]:
        """Name and settings of the engine."""
        for pattern, choice in self._choices:
            if pattern.search(stream):
                return choice.engine, choice.settings
        return "simple", {}

    def stores(self, stream: bytes) -> bool:
        return stores(self.choose(stream)[0])

    def has_flow_control(self, stream: bytes) -> bool:
        """Whether the stream's engine delivers only against credit."""
        try:
            return holds(engine_class(self.choose(stream)[0]))
        except MamaError:  # reported when the stream is opened
            return False
