"""Selects the engine of a stream by the configured rules, before the stream is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mama_spark.errors import MamaError
from mama_spark.malamute.protocol.patterns import Pattern

from ..engines import engine_class, holds
from .settings import EngineChoice


def stores(engine: str) -> bool:
    """The engine of this name stores messages; an engine that cannot be loaded is reported when a stream is opened."""
    try:
        return engine_class(engine).stored
    except MamaError:
        return False


class EngineSelector:
    """:param choices: the first whose pattern matches counts; other streams are ``simple``"""

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
        """The engine delivers only what it has credit for."""
        try:
            return holds(engine_class(self.choose(stream)[0]))
        except MamaError:  # reported when the stream is opened
            return False
