"""A batch of messages in columns: publishers send it and bridges take it; one element of each column per message. Pure.

Rows come from Spark as Arrow batches and stay columns until they are bytes on a socket.
:mod:`mama_spark.spark.sink.encoding.row_encoder` makes message batches of a DataFrame's columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .errors import PublishError

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

HEADERS_TYPE = pa.map_(pa.string(), pa.list_(pa.string()))
#: How Python looks at headers: text of Spark may be no UTF-8.
BYTES_OF_HEADERS = pa.map_(pa.binary(), pa.list_(pa.binary()))


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """``n`` messages. All columns have length ``n`` (a column that is not used is None). Nulls stand only where this
    says so, and in rows that the caller has rejected.

    :ivar topics: ``dictionary<int32, string>``: most batches have few distinct topics
    :ivar payloads: binary or large_binary
    :ivar headers: ``map<string, list<string>>`` (:data:`HEADERS_TYPE`), or None when no message has headers; an element
        may be null (none)
    :ivar ids: string, or None when the middleware shall not deduplicate
    :ivar streams: ``dictionary<int32, string>``: the stream of each message, for middlewares in which a topic does not
        determine it; None = the one of the transport
    :ivar traces: string, the W3C ``traceparent`` of each message, null where it has none; None = no message has one.
        Like ids it is no part of the message, unless publishers are told to send it as a header
    """

    topics: pa.DictionaryArray
    payloads: pa.Array
    headers: pa.Array | None = None
    ids: pa.Array | None = None
    streams: pa.DictionaryArray | None = None
    traces: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.payloads)

    def slice(self, offset: int, length: int) -> MessageBatch:
        """``length`` messages from ``offset``; shares memory."""
        return self._each(lambda column: column.slice(offset, length))

    def take(self, rows: Int64s) -> MessageBatch:
        """The messages at ``rows``, in that order; copies."""
        index = pa.array(rows)
        return self._each(lambda column: column.take(index))

    def _each(self, change: Callable[[pa.Array], pa.Array]) -> MessageBatch:
        columns = (self.topics, self.payloads, self.headers, self.ids, self.streams, self.traces)
        return MessageBatch(*(None if column is None else change(column) for column in columns))

    def sizes(self) -> Int64s:
        """Payload bytes of each message."""
        return payload_sizes(self.payloads)

    @classmethod
    def of(
        cls,
        topics: list[str],
        payloads: list[bytes],
        headers: list[dict[str, list[str]] | None] | None = None,
        ids: list[str] | None = None,
        streams: list[str] | None = None,
    ) -> MessageBatch:
        """A batch from Python lists: for tests, examples and single messages."""
        pairs: Any = None
        if headers is not None:
            pairs = pa.array([None if h is None else list(h.items()) for h in headers], HEADERS_TYPE)
        return cls(
            pa.array(topics, pa.string()).dictionary_encode(),
            pa.array(payloads, pa.binary()),
            pairs,
            None if ids is None else pa.array(ids, pa.string()),
            None if streams is None else pa.array(streams, pa.string()).dictionary_encode(),
        )


def payload_sizes(payloads: pa.Array) -> Int64s:
    """Bytes of each element of a binary, large_binary, binary_view or string array, without reading them."""
    if pa.types.is_binary_view(payloads.type):
        return payload_views(payloads)[:, 0].astype(np.int64)
    return np.diff(payload_bounds(payloads))


def payload_views(payloads: pa.Array) -> npt.NDArray[np.int32]:
    """Views of a binary_view array's elements: length, first four bytes, number of its buffer, offset in it; of 12
    bytes or less the length and all of them."""
    views = np.frombuffer(payloads.buffers()[1], np.int32).reshape(-1, 4)
    return views[payloads.offset : payloads.offset + len(payloads)]


def as_binary(payloads: pa.Array) -> pa.Array:
    """The bytes of a binary_view array side by side; a binary array as it is."""
    return payloads.cast(pa.binary()) if pa.types.is_binary_view(payloads.type) else payloads


def is_wide(kind: pa.DataType) -> bool:
    """Whether the type is strings or bytes with offsets of 64 bits."""
    return bool(pa.types.is_large_binary(kind) or pa.types.is_large_string(kind))


def payload_bounds(payloads: pa.Array) -> Int64s:
    """Offsets at which the elements of such an array begin in its data buffer, and where the last one ends."""
    offsets = np.frombuffer(payloads.buffers()[1], np.int64 if is_wide(payloads.type) else np.int32)
    return offsets[payloads.offset : payloads.offset + len(payloads) + 1].astype(np.int64)


def rows_by_stream(topics: pa.DictionaryArray, names: Sequence[str | None]) -> Iterator[tuple[str, Int64s]]:
    """The rows of each stream.

    :param names: name of the stream that takes each topic of the dictionary; None = none
    """
    first = names[0] if names else None
    if not topics.null_count and names.count(first) == len(names):
        if first is not None:
            yield first, np.arange(len(topics))
        return
    codes = topics.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
    for name in filter(None, dict.fromkeys(names)):
        rows = np.flatnonzero(np.array([*(one == name for one in names), False], np.bool_)[codes])
        if len(rows):
            yield name, rows


# --- rows with columns of a middleware's own ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeaderEntries:
    """Header entries of many rows.

    :ivar rows: the row of each entry
    :ivar names: string
    :ivar values: ``list<string>``
    """

    rows: Int64s
    names: pa.Array
    values: pa.Array


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as messages, row for row.

    :ivar topics: ``dictionary<int32, string>`` without nulls
    :ivar payloads: binary or large_binary without nulls; placeholders for the rows of ``bad``
    :ivar bad: rows that cannot become a message, with the reason, ascending, each row once
    :ivar headers: headers of the messages
    :ivar reserved: names of headers, in lower case, and what says them: rows have no others of these
    """

    topics: pa.DictionaryArray
    payloads: pa.Array
    bad: list[tuple[int, PublishError]]
    headers: Sequence[HeaderEntries] = ()
    reserved: Mapping[str, str] = field(default_factory=dict)


class RowCodec(Protocol):
    """Encodes rows as messages, for middlewares whose values have types. Equal rows always give equal messages."""

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns by name, and what each must be, as text for messages. With ``headers`` among them, the codec gets
        the rows without, and messages have them as those of topic and value do."""

    @property
    def needed(self) -> Sequence[str]:
        """Names of the columns that must be present."""

    @property
    def takes_others(self) -> bool:
        """Whether columns of other names are part of the message, too; they come under the names of the DataFrame."""

    def check(self, schema: pa.Schema) -> None:
        """Check the types of the columns.

        :raises SchemaError: a column has a type that cannot be encoded
        """

    def encode(self, rows: pa.RecordBatch) -> EncodedRows:
        """The rows as messages.

        :param rows: columns of :attr:`columns`, of a schema that was checked
        """


# --- columns of bytes that are joined of parts ---------------------------------------------------------------------


class RecordWriter(Protocol):
    """Stores the records of a recorder, in order; ``publisher.resilient_publisher`` has one."""

    stored: int

    @property
    def waiting(self) -> int: ...

    def write(self, batch: MessageBatch, give_up: Callable[[], bool] = ...) -> bool: ...

    def reconnect(self, give_up: Callable[[], bool] = ...) -> None: ...

    def drain(self, timeout: float) -> bool: ...


class RowDecoder(Protocol):
    """Makes columns of records. For one thread.

    :ivar bad: records so far that could not be read
    """

    bad: int

    def columns(
        self, payloads: pa.Array, topics: pa.Array, sequences: Int64s, faults: Mapping[int, str]
    ) -> dict[str, pa.Array]:
        """The columns by name.

        :param topics: topics of the records in the log
        :param faults: record -> why it cannot be read, where that is known
        :raises MamaError: a record cannot be read, and the decoder is a strict one
        """


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The parts that make columns of records: ``module:attribute``, imported when they are needed: a planner of Spark
    often asks for the type alone.

    :ivar column: name of the column that says what a record is
    :ivar type: type of that column
    :ivar decoder: ``(column_type, fields, strict) -> RowDecoder``: the type is None where the column is not wanted;
        with ``strict`` it raises where a record cannot be read, instead of saying so in its row
    :ivar packed: a message may hold several records
    :ivar field_columns: ``(o: SubscribeOptions) -> pa.Schema``: columns for fields of records that the options name;
        None: there are no columns of fields
    :ivar fields: ``(columns: pa.Schema, o) -> Sequence``: what the decoder needs to know of such columns; it is pickled
    """

    column: str
    type: pa.StructType
    decoder: str
    packed: bool = False
    field_columns: str | None = None
    fields: str | None = None


def join_columns(columns: list[Any]) -> pa.Array:
    """The bytes of binary columns, joined row by row."""
    import pyarrow.compute as pc  # a planner, which imports this module, needs none of it

    return pc.binary_join_element_wise(*columns, pa.scalar(b""))


def offsets_of(sizes: Int64s) -> pa.Array:
    """Offsets of lists of these sizes."""
    return pa.array(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))


def lengths_of(values: pa.Array) -> Int64s:
    """Bytes of each element, 0 for null."""
    import pyarrow.compute as pc

    lengths: Int64s = pc.fill_null(pc.binary_length(values), 0).to_numpy().astype(np.int64)
    return lengths


def u32_column(values: Int64s) -> pa.Array:
    """Each as four bytes, little-endian."""
    return fixed_width(np.ascontiguousarray(values, "<u4").view(np.uint8).reshape(len(values), 4))


def fixed_width(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """A binary array from rows of one width; shares memory."""
    n, width = rows.shape
    offsets = np.arange(0, (n + 1) * width, width, dtype=np.int32) if width else np.zeros(n + 1, np.int32)
    return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(offsets), pa.py_buffer(rows.reshape(-1))])


def decimal_digits(first: int, n: int, width: int) -> npt.NDArray[np.uint8]:
    """``n`` consecutive numbers as zero-padded text, shape (n, width); ``width`` is more than 4."""
    digits = np.empty((n, width), np.uint8)
    row = 0
    while row < n:  # one iteration per 10,000 numbers
        high, low = divmod(first + row, 10_000)
        end = min(n, row + 10_000 - low)
        digits[row:end, :-4] = np.frombuffer(b"%0*d" % (width - 4, high), np.uint8)
        digits[row:end, -4:] = _four_digits()[low : low + end - row]
        row = end
    return digits


@cache
def _four_digits() -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(b"%04d" % i for i in range(10_000)), np.uint8).reshape(10_000, 4)


def read_heads(payloads: pa.Array, head: np.dtype[Any]) -> tuple[Any, Int64s, Int64s, npt.NDArray[Any]]:
    """The bytes of binary payloads, where each begins and ends in them, and its head.

    :returns: heads, of zeros where a payload is shorter than one
    """
    bounds = payload_bounds(payloads)
    begins, ends, data = bounds[:-1], bounds[1:], payloads.buffers()[2] or b""
    if payloads.null_count:
        ends = np.where(payloads.is_valid().to_numpy(zero_copy_only=False), ends, begins)
    heads, whole = np.zeros(len(begins), head), ends - begins >= head.itemsize
    if whole.any():
        heads[whole] = at_each_byte(memoryview(data), head)[begins[whole]]
    return data, begins, ends, heads


def at_each_byte(data: bytearray | memoryview, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """The element that begins at each byte; the elements overlap."""
    return np.ndarray((len(data) - np.dtype(kind).itemsize + 1,), kind, data, strides=(1,))
