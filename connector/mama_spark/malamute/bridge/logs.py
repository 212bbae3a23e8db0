"""The stored streams of a broker as record logs: :mod:`mama_spark.contracts.record_log` by log queries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from mama_spark.malamute.protocol.log_query import LogQuery, Op, parse_texts

from .log_queries import LogQueries
from .settings import MalamuteSettings
from .stream_log import MalamuteLog

#: Prefix of the broker's own streams; topics do not find them.
_RESERVED = "_MAMA_"


class MalamuteLogs:
    """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`.

    :param settings: with a stream, there is no other log
    :param timeout: seconds without an answer before :class:`~mama_spark.contracts.errors.Unavailable`
    :param pattern: a regular expression for subjects, of :mod:`mama_spark.malamute.protocol.patterns`: what is read
        when no topics are given
    """

    def __init__(self, settings: MalamuteSettings, timeout: float = 30.0, pattern: str | None = None) -> None:
        self._queries, self._pattern = LogQueries(settings, timeout), pattern

    def __repr__(self) -> str:
        return f"<MalamuteLogs {', '.join(self._queries.settings.connection.urls)}, {self._queries.state}>"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self) -> None:
        """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`.

        :raises ConfigError: the broker is none of ours: it keeps nothing that could be read
        """
        self._queries.open()

    def close(self) -> None:
        """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`."""
        self._queries.close()

    def names(self, topics: Sequence[str]) -> list[str]:
        """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`. A stream takes every topic, so it is the one
        that the settings name, or all that are stored, without the broker's own where topics are given."""
        named = self._queries.settings.stream
        if named is not None:
            return [named] if topics or named in self._all() else []
        return [name for name in self._all() if not (topics and name.startswith(_RESERVED))]

    def _all(self) -> list[str]:
        found: list[str] = []
        after, more = b"", True
        while more:
            answer = self._queries.ask(LogQuery(Op.NAMES, 0, text=after))
            page = parse_texts(answer.body[1:])
            more = answer.body[:1] == b"\1" and bool(page)
            after = page[-1] if page else b""
            for name in page:
                with suppress(UnicodeDecodeError):
                    found.append(name.decode())
        return found

    def log(self, name: str) -> MalamuteLog:
        """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`."""
        return MalamuteLog(self._queries, name, self._pattern)
