"""The configured rules for streams: which engine a stream has before it is opened, and which stored ones can be read.

A stream can be read if it is open, if its store is on disk, or if the configuration names it (by a pattern such as
``^orders$``, which matches one name only). Reading never creates any other stream.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mama_spark.contracts.errors import MamaError
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.log_query import LogQueryAnswer
from mama_spark.malamute.protocol.patterns import Pattern

from ..configuration import EngineChoice
from ..engines import StreamEngine, engine_class, holds

#: Seconds for which the list of stores on disk is cached.
FRESH = 1.0
_NAME = re.compile(rb"\^((?:[^\\.^$*+?()\[\]{}|]|\\[^a-zA-Z0-9])*)\$")


class EngineSelector:
    """The engine of each stream: of the first of ``choices`` with a matching pattern, or ``simple``. The broker's
    :class:`~mama_spark.malamute.broker.session.streams.StreamCatalog`."""

    def __init__(self, choices: Sequence[EngineChoice]) -> None:
        self._choices = [(Pattern(choice.pattern), choice) for choice in choices]
        self._named = {name for choice in choices if (name := name_of(choice.pattern)) is not None}
        self._kept: set[bytes] = set()
        self._listed_at = -FRESH

    def choose(self, stream: bytes) -> tuple[str, Mapping[str, Any]]:
        """Name and settings of the engine."""
        for pattern, choice in self._choices:
            if pattern.search(stream):
                return choice.engine, choice.settings
        return "simple", {}

    def _class(self, stream: bytes) -> type[StreamEngine] | None:
        """The engine's class; None: it cannot be loaded, which is reported when the stream is opened."""
        try:
            return engine_class(self.choose(stream)[0])
        except MamaError:
            return None

    def stores(self, stream: bytes) -> bool:
        engine = self._class(stream)
        return engine is not None and engine.stored

    def has_flow_control(self, stream: bytes) -> bool:
        engine = self._class(stream)
        return engine is not None and holds(engine)

    def names(self, are_open: Iterable[bytes]) -> list[bytes]:
        """Streams created since the disk was listed are in ``are_open``."""
        now = time.monotonic()
        if now >= self._listed_at + FRESH:
            self._kept, self._listed_at = self._list_stored(), now
        return sorted(self._kept.union(name for name in are_open if self.refusal(name, True) is None))

    def _list_stored(self) -> set[bytes]:
        found = set(filter(self.stores, self._named))
        for _, choice in self._choices:
            try:
                there = engine_class(choice.engine).stored_streams(choice.settings)
            except (MamaError, OSError):  # reported when such a stream is opened
                continue
            found.update(name for name in there if self.choose(name) == (choice.engine, choice.settings))
        return found

    def refusal(self, stream: bytes, is_open: bool) -> LogQueryAnswer | None:
        name, settings = self.choose(stream)
        engine = self._class(stream)
        stored = engine is not None and engine.stored

        def refused(code: StatusCode, reason: str, identity: str = "") -> LogQueryAnswer:
            return LogQueryAnswer(0, code, reason.encode(), identity.encode())

        if engine is not None and stored:
            if (why := engine.unreadable(stream, settings)) is not None:
                return refused(StatusCode.NOT_IMPLEMENTED, why, name)
            if is_open or stream in self._named or engine.is_stored(stream, settings):
                return None
            if (why := engine.unopened(stream, settings)) is not None:  # may pass: a client that publishes opens it
                return refused(StatusCode.INTERNAL_ERROR, why, name)
        if not is_open:
            return refused(StatusCode.FAILED, "there is no such stream")
        return refused(StatusCode.NOT_IMPLEMENTED, f"the engine {name} keeps nothing to read again")


def name_of(pattern: bytes) -> bytes | None:
    """The only stream that a pattern can match; None if it can match several."""
    found = _NAME.fullmatch(pattern)
    return None if found is None else re.sub(rb"\\(.)", rb"\1", found[1])
