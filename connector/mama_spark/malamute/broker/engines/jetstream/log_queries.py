"""What log queries ask of a stream that is stored in a record log.

State, and the last message of a subject, come from the leader of the log. Messages are read by a consumer for each
query, and a replica that lacks some of them is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mama_spark.contracts.record_log import LogState, ServedLog
from mama_spark.malamute.protocol.log_query import LOOK
from mama_spark.malamute.protocol.ttl import ttl_directive_of

from ..frame_columns import pack, pack_headers
from ..log_queries import COUNTED, FEW_SUBJECTS, BadQuery, Row, Rows, limits
from .message_codec import (
    GENERATED_ID,
    MSG_ID,
    ConsumedMessage,
    decode_id,
    decode_records,
    decode_subject,
    encode_subject,
    encode_value,
    headers_of,
)

#: Octets that one query reads, about.
_OCTETS = 4 * 1024 * 1024
#: Removed sequences beyond which so many are examined as :data:`COUNTED` says: the server does not list more.
_LISTED = 100_000


class RecordLogQueries:
    """See :class:`~mama_spark.malamute.broker.engines.log_queries.QueriedStore`; :meth:`refresh` comes first.

    :param name: of the stream
    :param prefix: of the topics in the log
    """

    def __init__(self, name: bytes, log: ServedLog, prefix: str) -> None:
        self.name = name
        self._log, self._prefix = log, prefix
        self._state: LogState | None = None
        self.at = log.at

    def refresh(self) -> LogState:
        """As the leader has it now.

        :raises ConfigError: the log was deleted, or created again
        """
        self._state = self._log.state()
        return self._state

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

    def missing(self, after: int, up_to: int) -> tuple[list[tuple[int, int]], int]:
        first, last = self.bounds()
        if last + 1 - first - self.state.records > _LISTED:
            up_to = min(up_to, max(after, first) + COUNTED)
        return self._log.missing(after, up_to), up_to

    def trim(self, before: int) -> None:
        self._log.trim(min(before, self.bounds()[1] + 1))
        self.refresh()

    # --- messages ------------------------------------------------------------------------------------------------

    def scan(self, after: int, up_to: int, rows: int, octets: int) -> Rows:
        each = max(1, self.state.size // max(1, self.state.records))
        low, reached = self._range(after, up_to, min(rows, min(octets, _OCTETS) // each + 1))
        for records in self._log.read(low, reached) if low < reached else ():
            messages = decode_records(records, self._prefix, self._log.name)
            yield [_row(one)[:-1] for one in messages if one.message is not None], int(records.sequences[-1])
        yield (), reached

    def subjects(self, after: int, up_to: int) -> Rows:
        low, reached = self._range(after, up_to, LOOK)
        for records in self._log.read_without_payloads(low, reached) if low < reached else ():
            subjects = map(self._subject, records.topics.to_pylist())
            yield list(zip(records.sequences.tolist(), subjects, strict=True)), int(records.sequences[-1])
        yield (), reached

    def ids(self, after: int, up_to: int, rows: int, prefix: bytes) -> tuple[Iterable[Row], int]:
        low, reached = self._range(after, up_to, min(max(rows, 1), LOOK))
        begin, found = encode_value(prefix), []
        for records in self._log.read_without_payloads(low, reached) if low < reached else ():
            columns = zip(records.sequences.tolist(), records.topics.to_pylist(), headers_of(records), strict=True)
            for sequence, topic, headers in columns:
                one = next((value for name, value in headers if name == MSG_ID), None)
                if one is not None and one.startswith(begin) and not one.startswith(GENERATED_ID):
                    found.append((sequence, decode_id(one.encode()), self._subject(topic)))
        return found, reached

    def last_of(self, subjects: Sequence[bytes], after: int, up_to: int) -> list[Row]:
        rows = []
        for subject in subjects:
            found = self._log.newest(f"{self._prefix}.{encode_subject(subject)}")
            if found is not None:
                rows += [_row(one) for one in decode_records(found, self._prefix, self._log.name) if one.message]
        return sorted(row[:-1] for row in rows if row[-1] is not None and after < row[0] <= up_to)

    def last_of_each(self, after: int, up_to: int, rows: int, octets: int) -> Rows:
        raise BadQuery(f"this engine looks up the messages of {FEW_SUBJECTS} subjects at most, not of patterns")

    def _subject(self, topic: str) -> bytes:
        return decode_subject(topic[len(self._prefix) + 1 :].encode())

    def _range(self, after: int, up_to: int, most: int) -> tuple[int, int]:
        """The part ``(after, up_to]`` of so many sequences that is read."""
        low = min(max(after, self.bounds()[0] - 1), max(after, up_to))
        return low, min(up_to, low + most)


def _row(consumed: ConsumedMessage) -> Row:
    """With the time to live at the end."""
    sequence, time, found = consumed
    assert found is not None
    content, lengths = pack(found.content)
    headers = pack_headers(found.headers)
    ttl = ttl_directive_of(found.headers)
    return sequence, time, found.sender, found.subject, content, lengths, found.message_id, headers, ttl
