"""The stored streams of a broker as record logs: :mod:`mama_spark.contracts.record_log` by log queries."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from mama_spark.contracts.errors import ConfigError, Rejected, Unavailable
from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.contracts.record_log import Bounds, MatchRange, RecordLog, RecordLogBridge, Records, Removal
from mama_spark.contracts.topics import TopicFilter
from mama_spark.malamute.client.connection_settings import FEATURES, ConnectionSettings
from mama_spark.malamute.protocol.commands import MAX_STRING
from mama_spark.malamute.protocol.log_query import (
    FETCH_BYTES,
    LogQuery,
    LogQueryAnswer,
    Op,
    Selection,
    parse_numbers,
    parse_texts,
)
from mama_spark.options import SinkOptions
from mama_spark.options.window_config import WindowConfig
from mama_spark.publishing.window.blocking_sender import BlockingSender

from . import records as rc
from .bridge import MalamuteBridge
from .log_queries import LogQueries, ReadSession
from .settings import MalamuteSettings

T = TypeVar("T")
#: Names that topics do not find: the prefix of the broker's own streams, and the default stream of markers.
_RESERVED = ("_MAMA_", SinkOptions.batches_stream)
_LARGEST = 2**63 - 1
_MOST_MATCHING = 2**32 - 1  #: a number of the question has four bytes


class MalamuteLogs(RecordLogBridge):
    """The stored streams of a broker; with a stream in the settings, that one only.

    :param timeout: seconds without an answer before :class:`~mama_spark.contracts.errors.Unavailable`
    :param pattern: a regular expression (:mod:`mama_spark.malamute.protocol.patterns`) of the subjects to read when no
        topics are given
    """

    def __init__(self, settings: MalamuteSettings, timeout: float = 30.0, pattern: str | None = None) -> None:
        self._queries, self._pattern = LogQueries(settings, timeout), pattern

    def open(self) -> None:
        """See :class:`~mama_spark.contracts.record_log.RecordLogBridge`.

        :raises ConfigError: the broker is none of ours: it keeps nothing that could be read
        """
        self._queries.open()

    def close(self) -> None:
        self._queries.close()

    def names(self, topics: Sequence[str]) -> list[str]:
        """A stream takes every topic, so it is the one of the settings, or all that are stored; where topics are given,
        without the streams of the broker and the connector."""
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
        return MalamuteLog(self._queries, name, self._pattern)


class MalamuteLog(RecordLog):
    """See :class:`~mama_spark.contracts.record_log.RecordLog`.

    :param pattern: selects subjects where no topics are given
    :raises ConfigError: there is no such stream, or it is not stored
    """

    def __init__(self, queries: LogQueries, name: str, pattern: str | None = None) -> None:
        self._queries, self._pattern = queries, pattern
        self._name, self._stream = name, name.encode()
        if len(self._stream) > MAX_STRING or 0 in self._stream:
            raise ConfigError(f"there is no stream {name!r}: a name has at most {MAX_STRING} bytes, and no NUL")
        answer = queries.ask(LogQuery(Op.BOUNDS, 0, self._stream))
        self._identity = answer.identity
        self._limits = parse_texts(parse_numbers(answer.body, 2)[1])

    @property
    def name(self) -> str:
        return self._name

    def _ask(self, op: Op, *numbers: int) -> bytes:
        text = self._identity if op is Op.TRIM else b""
        return self._require_same(self._queries.ask(LogQuery(op, 0, self._stream, numbers, text))).body

    def _require_same(self, answer: LogQueryAnswer) -> LogQueryAnswer:
        if answer.identity != self._identity:
            raise ConfigError(f"stream {self._name!r} was deleted and created again while it was read")
        return answer

    def bounds(self) -> Bounds:
        return self._queries.bounds(self._stream)

    def sequence_at(self, time: int) -> int:
        return parse_numbers(self._ask(Op.AT, max(-_LARGEST, min(time, _LARGEST))), 1)[0][0]

    def match_range(self, after: int, up_to: int, topics: Sequence[str], limit: int) -> MatchRange:
        """The broker looks at some thousand subjects a question."""
        selection, texts = selection_of(topics, self._pattern)
        found, limit = 0, min(limit, _MOST_MATCHING)
        while after < up_to and found < limit:
            query = LogQuery(Op.MATCH, 0, self._stream, (after, up_to, limit - found), b"", selection, texts)
            answer = self._require_same(self._queries.ask(query))
            (reached, more), _ = parse_numbers(answer.body, 2)
            found, after = found + more, max(reached, after + 1)
        return MatchRange(min(after, up_to), found)

    def missing(self, after: int, up_to: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        after, up_to = max(0, after), min(up_to, _LARGEST)
        while after < up_to:
            (reached,), rest = parse_numbers(self._ask(Op.MISSING, after, up_to), 1)
            edges, _ = parse_numbers(rest, len(rest) // 8)
            for low, high in zip(edges[::2], edges[1::2], strict=True):
                if found and found[-1][1] + 1 == low:
                    found[-1] = (found[-1][0], high)
                else:
                    found.append((low, high))
            if reached <= after:
                break
            after = reached
        return found

    def current(self, topics: Sequence[str] = (), since: int = 0, payloads: bool = True) -> Iterator[Records]:
        """A broker has no index of subjects, so all is read. Messages removed meanwhile for newer ones of their subject
        are replaced by what was stored since: up to an end asked for when it is known what is missing, until nothing
        more was removed before it."""
        after, last = 0, self.bounds().last
        while last > after:
            missing, end = self.missing(after, last), self.bounds().last
            yield from self.read(after, end, topics)
            if self.missing(after, end) == missing:
                return
            after, last = end, self.bounds().last

    @property
    def removal(self) -> Removal:
        between = any(b"(max_per_subject)" in text for text in self._limits)
        return Removal(between, replaced_since=0 if between and len(self._limits) == 1 else None)

    def last_of(self, subject: str) -> Records | None:
        """The last message of a subject whose messages have a time to live."""
        query = LogQuery(
            Op.STANDING, 0, self._stream, (0, _LARGEST, 1, FETCH_BYTES), b"", Selection.SUBJECTS, (subject.encode(),)
        )
        _, found = self._queries.asked(query)
        return rc.records(found) if found else None

    def trim(self, before: int) -> None:
        before = min(before, self.bounds().last + 1)
        first = 0
        while first < before:
            now = parse_numbers(self._ask(Op.TRIM, before), 1)[0][0]
            if now == first:
                return
            first = now

    def append(self, batch: MessageBatch) -> int:
        last = append(self._queries.settings, self._name, batch, self._queries.timeout)
        return self.bounds().last if last is None else last

    def require_topics(self, topics: Sequence[str]) -> None:
        """Do nothing: a stored stream takes all."""

    def warnings(self, topics: Sequence[str] = ()) -> list[str]:
        return [f"stream {self._name!r} removes records {text.decode('utf-8', 'replace')}" for text in self._limits]

    def progress(self, name: str, up_to: int, topics: Sequence[str] = ()) -> None:
        """A broker does not show how far readers are."""

    def read(self, after: int, up_to: int, topics: Sequence[str] = ()) -> Iterator[Records]:
        """A few megabytes are fetched ahead, and no more: a fetch is the credit."""
        selection, texts = selection_of(topics, self._pattern)
        return self._read(ReadSession(max(0, after), min(up_to, _LARGEST), selection, texts), rc.block)

    def ids(self, after: int, up_to: int, prefix: bytes) -> Iterator[tuple[Int64s, list[bytes]]]:
        """Sequences and ids of the messages of :meth:`read` whose id begins with ``prefix``."""
        selection, texts = selection_of((), self._pattern)
        session = ReadSession(max(0, after), min(up_to, _LARGEST), selection, texts, ids=prefix)
        return self._read(session, rc.ids)

    def _read(self, session: ReadSession, convert: Callable[[Sequence[bytes]], T]) -> Iterator[T]:
        queries = self._queries
        until = time.monotonic() + queries.timeout
        while not session.complete:
            try:
                for query in session.queries(self._stream):
                    session.sent(queries.send(query, until))
                pending = session.parts[0].pending
                answer = self._require_same(queries.wait(pending))
            except Unavailable as e:
                queries.wait_for_connection(until, e)
                session.restart()
                continue
            session.take(answer)
            until = time.monotonic() + queries.timeout
            if pending.records:
                yield convert(pending.records[0])
                until = time.monotonic() + queries.timeout  # the reader took its time


def selection_of(topics: Sequence[str], pattern: str | None = None) -> tuple[Selection, tuple[bytes, ...]]:
    """The selection for topics, which may have wildcards, or else the pattern, or all."""
    if not topics:
        return (Selection.ALL, ()) if pattern is None else (Selection.PATTERNS, (pattern.encode(),))
    if not all(TopicFilter.parse(topic).literal for topic in topics):
        return Selection.PATTERNS, tuple(dict.fromkeys(pattern_of(topic) for topic in topics))
    return Selection.SUBJECTS, tuple(dict.fromkeys(topic.encode() for topic in topics))


def pattern_of(topic: str) -> bytes:
    """The pattern that the broker searches subjects for. Unlike :meth:`TopicFilter.regex`, it is an expression of CZMQ,
    which searches in bytes: so it is anchored, and a letter of several bytes is several of them."""
    wanted = TopicFilter.parse(topic)
    body = [b"[^.]+" if part is None else _escaped(part) for part in wanted.parts]
    if wanted.rest:
        return b"^" + b"".join(part + rb"\." for part in body) + b"."
    return b"^" + rb"\.".join(body) + b"$"


def _escaped(part: str) -> bytes:
    return re.sub(rb"([^A-Za-z0-9_\x80-\xff])", rb"\\\1", part.encode())


def append(settings: MalamuteSettings, stream: str, batch: MessageBatch, timeout: float) -> int | None:
    """Append a few messages in order; returns the sequence of the last, None for an empty batch. Nothing is sent again:
    a resend could change the order.

    :raises PublishError: one was rejected, or its outcome is not known; those before it are stored
    :raises Unavailable: the broker did not take them within ``timeout`` seconds
    """
    if not len(batch):
        return None
    connection = replace(settings.connection, features=FEATURES, high_water=ConnectionSettings().high_water)
    bridge = MalamuteBridge(replace(settings, connection=connection, stream=stream, dedup=batch.ids is not None))
    bridge.open()
    try:
        rejected = dict(bridge.prepare(batch).rejected)
        first = min(rejected, default=len(batch))
        last = _store(bridge, batch.slice(0, first), timeout) if first else None
        if rejected:
            raise rejected[first]
        return last
    finally:
        bridge.close()


def _store(bridge: MalamuteBridge, batch: MessageBatch, timeout: float) -> int:
    policy = WindowConfig(max_in_flight=len(batch), wait_timeout=timeout, resend_uncertain=False)
    sequences = BlockingSender(bridge, policy).store(batch, timeout).sequence
    if (sequences < 0).any():
        raise Rejected("the stream is not stored")
    return int(sequences[-1])
