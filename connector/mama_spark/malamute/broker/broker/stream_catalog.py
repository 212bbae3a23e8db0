"""The stored streams of a broker, open or not.

A stream can be read if it is open, if its store is on disk, or if the configuration names it (by a pattern such as
``^orders$``, which matches one name only). Reading never creates any other stream.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mama_spark.contracts.errors import MamaError
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.log_query import LogQueryAnswer

from ..engines import engine_class
from .engine_selector import stores

#: Seconds for which the list of stores on disk is cached.
FRESH = 1.0
_NAME = re.compile(rb"\^((?:[^\\.^$*+?()\[\]{}|]|\\[^a-zA-Z0-9])*)\$")

Chosen = tuple[str, Mapping[str, Any]]  #: name of an engine and its settings


class StreamCatalog:
    """See :class:`~mama_spark.malamute.broker.session.log_queries.ReadableStreams`.

    :param choices: patterns of streams in order, with engine and settings
    :param choose: returns engine and settings of a stream
    """

    def __init__(self, choices: Iterable[tuple[bytes, Chosen]], choose: Callable[[bytes], Chosen]) -> None:
        self._choices = [(pattern, *chosen) for pattern, chosen in choices]
        self._choose = choose
        self._configured_names = {name for pattern, *_ in self._choices if (name := name_of(pattern)) is not None}
        self._kept: set[bytes] = set()
        self._listed_at = -FRESH

    def names(self, are_open: Iterable[bytes]) -> list[bytes]:
        """Names of readable streams. Streams created since the disk was listed are in ``are_open``."""
        now = time.monotonic()
        if now >= self._listed_at + FRESH:
            self._kept, self._listed_at = self._list_stored(), now
        return sorted(self._kept.union(name for name in are_open if self.refusal(name, True) is None))

    def _list_stored(self) -> set[bytes]:
        found = {name for name in self._configured_names if stores(self._choose(name)[0])}
        for _, engine, settings in self._choices:
            try:
                there = engine_class(engine).stored_streams(settings)
            except (MamaError, OSError):  # reported when such a stream is opened
                continue
            found.update(name for name in there if self._choose(name) == (engine, settings))
        return found

    def refusal(self, stream: bytes, is_open: bool) -> LogQueryAnswer | None:
        engine, settings = self._choose(stream)
        stored = stores(engine)
        unreadable = engine_class(engine).unreadable(stream, settings) if stored else None
        if unreadable is not None:
            return LogQueryAnswer(0, StatusCode.NOT_IMPLEMENTED, unreadable.encode(), engine.encode())
        if not (
            is_open
            or (stored and (stream in self._configured_names or engine_class(engine).is_stored(stream, settings)))
        ):
            unopened = engine_class(engine).unopened(stream, settings) if stored else None
            if unopened is not None:  # which may pass: a client that publishes opens it
                return LogQueryAnswer(0, StatusCode.INTERNAL_ERROR, unopened.encode(), engine.encode())
            return LogQueryAnswer(0, StatusCode.FAILED, b"there is no such stream")
        if not stored:
            return LogQueryAnswer(
                0, StatusCode.NOT_IMPLEMENTED, b"the engine %s keeps nothing to read again" % engine.encode()
            )
        return None


def name_of(pattern: bytes) -> bytes | None:
    """The only stream that a pattern can match; None if it can match several."""
    found = _NAME.fullmatch(pattern)
    return None if found is None else re.sub(rb"\\(.)", rb"\1", found[1])
