"""Answers log queries about a stream in JetStream (:mod:`mama_spark.malamute.protocol.log_query`).

State, and the last message of a subject, come from the leader of the stream. Messages are read by a consumer for each
query, and a replica that lacks some of them is waited for. Each answer is limited in size and work, so that a reader
delays the stream by a few hundredths of a second.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mama_spark.contracts.errors import ConfigError, MamaError
from mama_spark.malamute.protocol import log_query as qu
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer, Op, Selection, numbers, texts
from mama_spark.malamute.protocol.patterns import BadPattern
from mama_spark.malamute.protocol.ttl import ttl_directive_of
from mama_spark.nats.batches.message_ids import find_ids
from mama_spark.nats.jetstream.api import NO_MESSAGE, ApiError
from mama_spark.nats.protocol.records import DeliveryBuffer, DeliveryNumbers
from mama_spark.nats.read.logs import NatsLog, NatsLogs
from mama_spark.nats.settings import NatsSettings

from ..frame_columns import pack, pack_headers
from ..query_answers import BadQuery, QueryRecords, Row, Wanted, as_block, frames_of, ids_block, limits, selection_test
from .message_codec import GENERATED_ID, Unreadable, decode, decode_id, decode_subject, encode_subject, encode_value
from .stream_reader import JetStreamReader

log = logging.getLogger(__name__)
T = TypeVar("T")

TIMEOUT = 3.0  #: seconds in which NATS must answer
#: Octets that one query reads, about.
_OCTETS = 4 * 1024 * 1024
#: Subjects that one query looks up.
_FEW_SUBJECTS = 64
#: Sequences that one query examines where so many messages were removed that the server does not list them.
_COUNTED = 250_000
_LISTED = 100_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _State(NamedTuple):
    """:ivar each: octets of a message, on average"""

    config: dict[str, Any]
    first: int
    last: int
    each: int
    removed: int


class JetStreamQueries:
    """Over a connection of its own. Opens nothing before the first query.

    :param name: of the Malamute stream
    """

    def __init__(self, name: bytes, connection: NatsSettings, stream: JetStreamReader) -> None:
        self._name, self._stream = name, stream
        self._cut = len(stream.prefix) + 1
        self._logs = NatsLogs(connection, TIMEOUT)
        self._log: NatsLog | None = None

    def close(self) -> None:
        """Never raises."""
        self._logs.close()

    def answer(self, query: LogQuery) -> tuple[LogQueryAnswer, QueryRecords]:
        """The answer, and the frames of the messages before it. A wrong query has an answer with an error.

        :raises ConfigError: the stream was deleted, or created again
        """
        number, identity = query.number, self._stream.created.encode()
        try:
            state = self._state()
        except MamaError as e:
            if isinstance(e, ConfigError):
                raise
            return LogQueryAnswer(number, StatusCode.INTERNAL_ERROR, str(e).encode()), []
        try:
            body, records = _HANDLERS[query.op](self, query, state)
        except (BadPattern, BadQuery, ConfigError) as e:
            return LogQueryAnswer(number, StatusCode.FAILED, str(e).encode(), identity), []
        except MamaError as e:
            return LogQueryAnswer(number, StatusCode.INTERNAL_ERROR, str(e).encode()), []
        return LogQueryAnswer(number, identity=identity, body=body), records

    def _state(self) -> _State:
        """As the leader has it now."""
        if self._log is None:
            self._logs.connect()
            self._log = self._logs.log(self._stream.name)
        info = self._stream.require_same(self._logs.api.request(f"STREAM.INFO.{self._stream.name}"))
        state = info["state"]
        last, count = int(state["last_seq"]), int(state["messages"])
        first = int(state["first_seq"]) if count else last + 1
        each = int(state["bytes"]) // max(1, count)
        return _State(info["config"], first, last, max(1, each), int(state.get("num_deleted", 0)))

    @property
    def _opened(self) -> NatsLog:
        assert self._log is not None
        return self._log

    # --- numbers -------------------------------------------------------------------------------------------------

    def bounds(self, query: LogQuery, state: _State) -> tuple[bytes, QueryRecords]:
        """BOUNDS"""
        keys = ("max_age", "max_bytes", "max_msgs", "max_msgs_per_subject")
        age, *most = (int(state.config.get(key) or 0) for key in keys)
        return numbers(state.first, state.last) + texts(limits(age / 1e9, *most)), []

    def at(self, query: LogQuery, state: _State) -> tuple[bytes, QueryRecords]:
        """AT"""
        return numbers(self._opened.at(query.numbers[0])), []

    def missing(self, query: LogQuery, state: _State) -> tuple[bytes, QueryRecords]:
        """MISSING"""
        after, asked = query.numbers
        up_to = min(asked, state.last)
        reached = min(up_to, max(after, state.first) + _COUNTED) if state.removed > _LISTED else up_to
        ranges = self._opened.missing(after, reached)
        if len(ranges) > qu.MOST_RANGES:
            ranges = ranges[: qu.MOST_RANGES]
            reached = ranges[-1][1]
        return numbers(asked if reached >= up_to else reached, *(edge for one in ranges for edge in one)), []

    def trim(self, query: LogQuery, state: _State) -> tuple[bytes, QueryRecords]:
        """TRIM"""
        if query.text != self._stream.created.encode():
            raise BadQuery("the stream was deleted and created again")
        self._opened.trim(min(query.numbers[0], state.last + 1))
        return numbers(self._state().first), []

    def dedup(self, query: LogQuery, state: _State) -> tuple[bytes, QueryRecords]:
        """DEDUP"""
        return numbers(int(state.config.get("duplicate_window") or 0) // 1000), []

    def match(self, query: LogQuery, state: _State) -> tuple[bytes, QueryRecords]:
        """MATCH"""
        after, asked, most = query.numbers
        up_to, most, wanted = min(asked, state.last), max(most, 1), selection_test(query)
        low, reached = self._range(after, up_to, qu.LOOK, state)
        found: list[int] = []
        for some in self._read(low, reached, partial(self._subjects, reached), payloads=False):
            found += [sequence for sequence, subject in some if wanted is None or wanted(subject)]
            if len(found) >= most:
                return numbers(found[most - 1], most), []
        return numbers(asked if reached >= up_to else reached, len(found)), []

    # --- messages ------------------------------------------------------------------------------------------------

    def fetch(self, query: LogQuery, state: _State) -> tuple[bytes, QueryRecords]:
        """FETCH"""
        after, up_to, rows, octets = query.numbers
        rows, octets = min(max(rows, 1), qu.FETCH_ROWS), min(max(octets, 1), qu.FETCH_OCTETS)
        wanted, last = selection_test(query), state.last
        look = min(rows, octets // state.each + 1) if wanted is None else min(qu.LOOK, _OCTETS // state.each + 1)
        low, reached = self._range(after, min(up_to, last), look, state)
        found: list[Row] = []
        for some in self._read(low, reached, partial(self._rows, wanted, reached), payloads=True):
            for row in some:
                found.append(row)
                rows, octets = rows - 1, octets - len(row[4])
                if rows <= 0 or octets <= 0:
                    return numbers(row[0], last), list(frames_of(self._name, found))
        return numbers(max(reached, 0), last), list(frames_of(self._name, found))

    def block(self, query: LogQuery, state: _State) -> tuple[bytes, QueryRecords]:
        """BLOCK"""
        body, found = self.fetch(query, state)
        return body, as_block(self._name, found)

    def ids(self, query: LogQuery, state: _State) -> tuple[bytes, QueryRecords]:
        """IDS"""
        after, up_to, rows, _ = query.numbers
        wanted, prefix = selection_test(query), encode_value(query.text).encode()
        low, reached = self._range(after, min(up_to, state.last), min(max(rows, 1), qu.LOOK), state)
        sequences: list[int] = []
        found: list[bytes] = []
        for numbered, some in self._read(low, reached, partial(self._ids, wanted, prefix, reached), payloads=False):
            sequences += numbered
            found += some
        return numbers(max(reached, 0), state.last), ids_block(self._name, sequences, found)

    def last_of_subjects(self, query: LogQuery, state: _State) -> tuple[bytes, QueryRecords]:
        """STANDING"""
        after, up_to, _, _ = query.numbers
        if query.selection is not Selection.SUBJECTS or len(query.texts) > _FEW_SUBJECTS:
            raise BadQuery(f"this engine looks up the messages of {_FEW_SUBJECTS} subjects at most, not of patterns")
        rows = [row for subject in query.texts if (row := self._last_of(subject)) is not None]
        some = sorted(row for row in rows if after < row[0] <= up_to)
        return numbers(min(up_to, state.last), state.last), list(frames_of(self._name, some))

    def _last_of(self, subject: bytes) -> Row | None:
        """The last message of a subject, if it has a time to live."""
        body = {"last_by_subj": f"{self._stream.prefix}.{encode_subject(subject)}"}
        try:
            found = self._logs.api.request(f"STREAM.MSG.GET.{self._stream.name}", body)["message"]
        except ApiError as e:
            if e.code == NO_MESSAGE:
                return None
            raise
        time = (datetime.fromisoformat(found["time"]) - _EPOCH) // timedelta(microseconds=1)
        block, payload = b64decode(found.get("hdrs", "")), b64decode(found.get("data", ""))
        row = self._row(int(found["seq"]), time, found["subject"].encode(), payload, block)
        return None if row is None or row[-1] is None else row[:-1]

    # --- reading -------------------------------------------------------------------------------------------------

    @staticmethod
    def _range(after: int, up_to: int, most: int, state: _State) -> tuple[int, int]:
        """The part ``(after, up_to]`` of so many sequences that is read."""
        low = min(max(after, state.first - 1), max(after, up_to))
        return low, min(up_to, low + most)

    def _read(
        self, after: int, up_to: int, convert: Callable[[DeliveryBuffer, DeliveryNumbers], T | None], *, payloads: bool
    ) -> Iterator[T]:
        if after < up_to:
            yield from self._opened.read_all(after, up_to, convert, payloads=payloads)

    def _subjects(self, up_to: int, buffer: DeliveryBuffer, of: DeliveryNumbers) -> list[tuple[int, bytes]]:
        subjects = (decode_subject(subject[self._cut :]) for subject in buffer.subjects)
        return [one for one in zip(of.sequences.tolist(), subjects, strict=True) if one[0] <= up_to]

    def _ids(
        self, wanted: Wanted | None, prefix: bytes, up_to: int, buffer: DeliveryBuffer, of: DeliveryNumbers
    ) -> tuple[list[int], list[bytes]]:
        found = find_ids(buffer, of, prefix, up_to, records=False)
        sequences, ids = found.sequences, found.ids
        if wanted is not None:
            at = np.searchsorted(of.sequences, sequences)
            right = [wanted(decode_subject(buffer.subjects[i][self._cut :])) for i in at.tolist()]
            sequences, ids = sequences[right], [one for one, is_right in zip(ids, right, strict=True) if is_right]
        if not prefix and any(one.startswith(GENERATED_ID) for one in ids):
            given = [not one.startswith(GENERATED_ID) for one in ids]
            sequences, ids = sequences[given], [one for one, is_given in zip(ids, given, strict=True) if is_given]
        return sequences.tolist(), [decode_id(one) for one in ids]

    def _rows(self, wanted: Wanted | None, up_to: int, buffer: DeliveryBuffer, of: DeliveryNumbers) -> list[Row]:
        times, blocks = (of.times // 1000).tolist(), buffer.blocks or [None] * len(buffer)
        columns = zip(of.sequences.tolist(), times, buffer.subjects, buffer.payloads, blocks, strict=True)
        rows = (self._row(*one) for one in columns if one[0] <= up_to)
        return [row for row in rows if row is not None and (wanted is None or wanted(row[3]))]

    def _row(
        self, sequence: int, time: int, subject: bytes, payload: bytes | memoryview, block: bytes | None
    ) -> Row | None:
        """With the time to live at the end."""
        try:
            found = decode(subject[self._cut :], bytes(payload), block)
        except Unreadable as e:
            log.warning("message %d of stream %r is left out: %s", sequence, self._stream.name, e)
            return None
        content, lengths = pack(found.content)
        headers = pack_headers(found.headers)
        ttl = ttl_directive_of(found.headers)
        return sequence, time, found.sender, found.subject, content, lengths, found.message_id, headers, ttl


_HANDLERS: dict[Op, Callable[[JetStreamQueries, LogQuery, _State], tuple[bytes, QueryRecords]]] = {
    Op.BOUNDS: JetStreamQueries.bounds,
    Op.AT: JetStreamQueries.at,
    Op.MISSING: JetStreamQueries.missing,
    Op.TRIM: JetStreamQueries.trim,
    Op.FETCH: JetStreamQueries.fetch,
    Op.STANDING: JetStreamQueries.last_of_subjects,
    Op.BLOCK: JetStreamQueries.block,
    Op.MATCH: JetStreamQueries.match,
    Op.IDS: JetStreamQueries.ids,
    Op.DEDUP: JetStreamQueries.dedup,
}
