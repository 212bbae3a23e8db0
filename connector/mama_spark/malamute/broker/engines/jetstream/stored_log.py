"""The record log in which a stream is stored: opened, followed and queried.

State, and the last message of a subject, come from the leader of the log. Messages that a query asks for are read by a
consumer of its own, and a replica that lacks some of them is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.headers import MSG_ID
from mama_spark.contracts.record_log import Records
from mama_spark.contracts.served_log import LogState, LogTail, ServedLog
from mama_spark.contracts.topics import covers
from mama_spark.malamute.protocol.log_query import LOOK
from mama_spark.malamute.protocol.ttl import HEADERS
from mama_spark.registry import served_log_bridge

from ..log_queries import COUNTED, FEW_SUBJECTS, BadQuery, Row, Rows, limits, pack, pack_headers
from .message_codec import (
    GENERATED_ID,
    ConsumedMessage,
    JetStreamMessage,
    decode_id,
    decode_records,
    decode_subject,
    encode_subject,
    encode_value,
    headers_of,
)
from .settings import JetStreamSettings

#: Seconds in which the server must answer a question.
TIMEOUT = 5.0
#: Seconds that it may need to store what it has taken; the engine waits meanwhile.
_LOOK = 1.0
#: Bytes that one query reads, about.
_BYTES = 4 * 1024 * 1024
#: Removed sequences beyond which so many are examined as :data:`COUNTED` says: the server does not list more.
_LISTED = 100_000


class StoredLog:
    """The log of one stream; :meth:`refresh` comes before a query."""

    def __init__(self, name: bytes, options: JetStreamSettings) -> None:
        self.name = name
        self.log_name, self.prefix = options.names(name)
        self._topic = f"{self.prefix}.>"
        self._options = options
        self._logs = served_log_bridge(options.transport, TIMEOUT)
        self._opened: ServedLog | None = None
        self._state: LogState | None = None

    def open(self) -> LogState:
        """Find the log or make it.

        :raises ConfigError: it is not there and is not made, or it cannot be used
        :raises Unavailable: no server answers
        """
        self._logs.open()
        if self._options.create:
            self._logs.make(self.log_name, self._options.log_settings(self._topic))
        self._opened = self._logs.served(self.log_name)
        state = self.refresh()
        if not any(covers(topic, self._topic) for topic in state.settings.topics):
            raise ConfigError(f"the JetStream stream {self.log_name!r} does not take {self._topic!r}")
        return state

    @property
    def _log(self) -> ServedLog:
        assert self._opened is not None, "the engine was not started"
        return self._opened

    def refresh(self) -> LogState:
        """The state as the leader has it now.

        :raises ConfigError: the log was deleted, or created again
        """
        self._state = self._log.state()
        return self._state

    def last_sequence(self) -> int | None:
        """The last sequence; None if nobody tells it now; errors as :meth:`refresh`."""
        with suppress(Unavailable):
            return self.refresh().bounds.last
        return None

    def tail(self, after: int, name: str) -> LogTail:
        return self._log.tail(after, [self._topic], name)

    def poll(self, tail: LogTail) -> list[ConsumedMessage]:
        """The messages that came.

        :raises ConfigError: the log was deleted, or cannot be read
        """
        records = tail.poll()
        return [] if records is None else decode_records(records, self.prefix, self.log_name)

    def close(self) -> None:
        """Close the log; never raises."""
        self._logs.close()

    @property
    def state(self) -> LogState:
        assert self._state is not None, "refresh comes first"
        return self._state

    @property
    def identity(self) -> str:
        return self.state.bounds.identity

    def bounds(self) -> tuple[int, int]:
        return self.state.bounds.first, self.state.bounds.last

    def limits(self) -> list[bytes]:
        kept = self.state.settings
        return limits(kept.max_age, kept.max_size, kept.max_records, kept.max_per_topic)

    def sequence_at(self, time: int) -> int:
        return self._log.records.sequence_at(time)

    def missing(self, after: int, up_to: int) -> tuple[list[tuple[int, int]], int]:
        first, last = self.bounds()
        if last + 1 - first - self.state.records > _LISTED:
            up_to = min(up_to, max(after, first) + COUNTED)
        return self._log.records.missing(after, up_to), up_to

    def trim(self, before: int) -> None:
        self._log.records.trim(min(before, self.bounds()[1] + 1))
        self.refresh()

    def scan(self, after: int, up_to: int, rows: int, max_bytes: int) -> Rows:
        each = max(1, self.state.size // max(1, self.state.records))
        low, reached = self._range(after, up_to, min(rows, min(max_bytes, _BYTES) // each + 1))
        for records in self._log.records.read(low, reached) if low < reached else ():
            yield [_row(*one) for one in self._readable(records)], int(records.sequences[-1])
        yield (), reached

    def subjects(self, after: int, up_to: int) -> Rows:
        low, reached = self._range(after, up_to, LOOK)
        for records in self._log.read_without_payloads(low, reached) if low < reached else ():
            subjects = map(self._subject, records.topics.to_pylist())
            yield list(zip(records.sequences.tolist(), subjects, strict=True)), int(records.sequences[-1])
        yield (), reached

    def ids(self, after: int, up_to: int, rows: int, prefix: bytes) -> tuple[Iterable[Row], int]:
        low, reached = self._range(after, up_to, min(max(rows, 1), LOOK))
        begin = encode_value(prefix)
        found = (
            (sequence, decode_id(one.encode()), self._subject(topic))
            for sequence, topic, one in self._ids(low, reached)
            if one.startswith(begin) and not one.startswith(GENERATED_ID)
        )
        return list(found), reached

    def sequences_of(self, ids: set[str], after: int) -> dict[str, int]:
        """Sequences, behind ``after``, of the messages with these ids, as they are stored.

        :raises ConfigError: as :meth:`refresh`
        :raises Unavailable: nobody tells it now
        """
        self.refresh()
        last = self._log.decided_last(f"{self.prefix}.{encode_subject(b'')}", _LOOK)
        behind = self._ids(max(after, self.bounds()[0] - 1), last)
        return {one: sequence for sequence, _, one in behind if one in ids}

    def _ids(self, after: int, up_to: int) -> Iterator[tuple[int, str, str]]:
        for records in self._log.read_without_payloads(after, up_to) if after < up_to else ():
            columns = zip(records.sequences.tolist(), records.topics.to_pylist(), headers_of(records), strict=True)
            for sequence, topic, headers in columns:
                one = next((value for name, value in headers if name == MSG_ID), None)
                if one is not None:
                    yield sequence, topic, one

    def last_of(self, subjects: Sequence[bytes], after: int, up_to: int) -> list[Row]:
        newest = (self._log.newest(f"{self.prefix}.{encode_subject(subject)}") for subject in subjects)
        found = [one for records in newest if records is not None for one in self._readable(records)]
        with_ttl = (one for one in found if any(name in HEADERS for name, _ in one[2].headers))
        return sorted(_row(*one) for one in with_ttl if after < one[0] <= up_to)

    def last_of_each(self, after: int, up_to: int, rows: int, max_bytes: int) -> Rows:
        raise BadQuery(f"this engine looks up the messages of {FEW_SUBJECTS} subjects at most, not of patterns")

    def _readable(self, records: Records) -> list[tuple[int, int, JetStreamMessage]]:
        found = decode_records(records, self.prefix, self.log_name)
        return [(sequence, time, message) for sequence, time, message in found if message is not None]

    def _subject(self, topic: str) -> bytes:
        return decode_subject(topic[len(self.prefix) + 1 :].encode())

    def _range(self, after: int, up_to: int, most: int) -> tuple[int, int]:
        low = min(max(after, self.bounds()[0] - 1), max(after, up_to))
        return low, min(up_to, low + most)


def _row(sequence: int, time: int, found: JetStreamMessage) -> Row:
    content, lengths = pack(found.content)
    return sequence, time, found.sender, found.subject, content, lengths, found.message_id, pack_headers(found.headers)
