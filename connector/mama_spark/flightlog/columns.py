"""Flight events in columns, and their record batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..contracts.message import HEADERS_TYPE, Bools, Int64s
from .schema import EVENTS, TIMESTAMP

#: Type of string columns of which a part holds few different values: one byte a row.
LOW_CARDINALITY = pa.dictionary(pa.int8(), pa.string())
#: Type of string columns whose values repeat: Parquet takes the indexes as they are.
REPEATED = pa.dictionary(pa.int32(), pa.string())


@cache
def _event_dictionary() -> pa.Array:
    """The events as an array, not made at import: it imports pandas, which a process that only asks for names of data
    sources does not need."""
    return pa.array(EVENTS, pa.string())


#: (MAMA status name, the middleware's code, its text)
Reason = tuple[str | None, int | None, str | None]


@dataclass(frozen=True, slots=True)
class FlightColumns:
    """Events of ``n`` flights. The arrays are not copied: do not change them afterwards.

    :ivar flight_id: string array (nulls allowed)
    :ivar topic: dictionary or string array (nulls allowed)
    :ivar size: payload bytes, int32[n]
    :ivar event: uint8 indexes into :data:`~mama_spark.flightlog.schema.EVENTS`, or an Arrow array of those strings
    :ivar event_time: µs since the epoch, int64[n]
    :ivar publish_time: µs since the epoch, negative = never sent; None = all so
    :ivar latency_us: int64[n], negative = null; None = all null
    :ivar stream: dictionary or string array; a str for all; None = null
    :ivar sequence: int64[n], negative = null; None = all null
    :ivar duplicate: bool[n], or a boolean array with nulls; None = the mode does not say
    :ivar ack_level: ``none``, ``sent``, ``accepted`` or ``stored`` for all, or a dictionary array of them; None = null
    :ivar reasons: row -> (status, code, info) of the rows that have one: failed ones, and those with a doubled id;
        ascending order is not needed
    :ivar may_have_landed, dead_lettered: bool[n]; a bool for all; None = null
    :ivar sends: int32[n]; an int for all
    :ivar rows: source rows in the message: int32[n]; an int for all
    :ivar extra: the columns named by ``flightLogColumns``
    :ivar payload, headers: binary and :data:`~mama_spark.contracts.message.HEADERS_TYPE`, null where
        ``flightLogPayload`` leaves them out
    """

    flight_id: pa.Array
    topic: pa.Array
    size: npt.NDArray[np.integer[Any]]
    event: npt.NDArray[np.uint8] | pa.Array
    event_time: Int64s
    publish_time: Int64s | None = None
    latency_us: Int64s | None = None
    stream: pa.Array | str | None = None
    sequence: Int64s | None = None
    duplicate: Bools | pa.Array | None = None
    ack_level: str | pa.Array | None = None
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    may_have_landed: Bools | bool | None = False
    sends: npt.NDArray[np.integer[Any]] | int = 1
    dead_lettered: Bools | bool | None = None
    rows: npt.NDArray[np.integer[Any]] | int = 1
    extra: pa.RecordBatch | None = None
    payload: pa.Array | None = None
    headers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.event_time)

    @property
    def nbytes(self) -> int:
        """Bytes held, roughly: long columns are counted, the others estimated."""
        long = (self.flight_id, self.extra, self.payload, self.headers)
        return 100 * len(self) + sum(int(c.nbytes) for c in long if c is not None)

    def codes(self) -> npt.NDArray[np.uint8]:
        """The events as indexes into EVENTS."""
        if isinstance(self.event, np.ndarray):
            return self.event
        return np.asarray(pc.index_in(_as_string(self.event), _event_dictionary()), np.uint8)

    def without_acknowledgement(self) -> npt.NDArray[np.bool_]:
        """Flags of the events whose flight has the terminal event ``published``."""
        if self.ack_level is None or isinstance(self.ack_level, str):
            return np.full(len(self), self.ack_level == "none")
        return np.asarray(pc.equal(_as_string(self.ack_level), "none").fill_null(False))

    def take(self, rows: Int64s) -> FlightColumns:
        """The events at ``rows``, ascending."""
        index = pa.array(rows)
        values: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if name == "reasons":
                value = {new: value[old] for new, old in enumerate(rows.tolist()) if old in value} if value else value
            elif isinstance(value, np.ndarray):
                value = value[rows]
            elif isinstance(value, (pa.Array, pa.RecordBatch)):
                value = value.take(index)
            values[name] = value
        return FlightColumns(**values)


def flights_batch(chunks: Sequence[FlightColumns], constants: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """One record batch of all chunks' rows.

    :param constants: ``kind``, ``query_id``, .. : one value for all rows
    :param schema: schema of the part file (:func:`file_schema`)
    """
    n = sum(map(len, chunks))
    lengths = [len(c) for c in chunks]
    columns: dict[str, pa.Array] = {
        "flight_id": _arrays([c.flight_id for c in chunks], lengths, pa.string()),
        "topic": _repeated([c.topic for c in chunks], lengths),
        "stream": _repeated([c.stream for c in chunks], lengths),
        "ack_level": _low_cardinality([c.ack_level for c in chunks], lengths),
        "event": pa.DictionaryArray.from_arrays(
            pa.array(np.concatenate([c.codes() for c in chunks]).astype(np.int8)), _event_dictionary()
        ),
        "event_time": pa.array(np.concatenate([c.event_time for c in chunks]), pa.int64()).cast(TIMESTAMP),
        "publish_time": _integers([c.publish_time for c in chunks], lengths, pa.int64()).cast(TIMESTAMP),
        "latency_us": _integers([c.latency_us for c in chunks], lengths, pa.int64()),
        "sequence": _integers([c.sequence for c in chunks], lengths, pa.int64()),
        "size": _integers([c.size for c in chunks], lengths, pa.int32()),
        "sends": _integers([c.sends for c in chunks], lengths, pa.int32()),
        "rows": _integers([c.rows for c in chunks], lengths, pa.int32()),
        "duplicate": _arrays([c.duplicate for c in chunks], lengths, pa.bool_()),
        "may_have_landed": _arrays([c.may_have_landed for c in chunks], lengths, pa.bool_()),
        "dead_lettered": _arrays([c.dead_lettered for c in chunks], lengths, pa.bool_()),
        "payload": _arrays([c.payload for c in chunks], lengths, pa.binary()),
        "headers": _arrays([c.headers for c in chunks], lengths, HEADERS_TYPE),
        **_reasons(chunks, n),
    }
    arrays = []
    for f in schema:
        if f.name in columns:
            arrays.append(columns[f.name])
        elif f.name in constants:
            arrays.append(constant(constants[f.name], n, f.type))
        else:
            arrays.append(_extra(chunks, lengths, f))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class LoggedEvent(NamedTuple):
    """An event of a publisher or a topic (``kind``), in columns of the flight log; times in µs since the epoch."""

    kind: str
    event: str
    event_time: int
    topic: str | None = None
    status: str | None = None
    code: int | None = None
    info: str | None = None
    publisher_state: str | None = None


def events_batch(events: Sequence[LoggedEvent], constants: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    n, columns = len(events), dict(zip(LoggedEvent._fields, zip(*events, strict=True), strict=True))
    arrays = [
        pa.array(columns[f.name], f.type) if f.name in columns else constant(constants.get(f.name), n, f.type)
        for f in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def constant(value: Any, n: int, kind: pa.DataType) -> pa.Array:
    return _kept(value, kind, 1 << n.bit_length()).slice(0, n) if n <= _MOST_KEPT else _repeat(value, kind, n)


#: Rows up to which constant columns are kept: those of one task take a few megabytes.
_MOST_KEPT = 1 << 16


@lru_cache(maxsize=32)
def _kept(value: Any, kind: pa.DataType, n: int) -> pa.Array:
    """Each batch has more than a dozen of them; to make them took a tenth of the time of all columns."""
    return _repeat(value, kind, n)


def _repeat(value: Any, kind: pa.DataType, n: int) -> pa.Array:
    if value is None:
        return pa.nulls(n, kind)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(
            pa.repeat(pa.scalar(0, kind.index_type), n), pa.array([value], pa.string())
        )
    return pa.repeat(pa.scalar(value, kind), n)


def file_schema(part: pa.Schema) -> pa.Schema:
    """``part`` with the types that the Parquet writer gets."""
    low_cardinality = ("kind", "event", "ack_level", "publisher_state", "query_id", "run_id", "bridge")
    encoded = {**dict.fromkeys(low_cardinality, LOW_CARDINALITY), "topic": REPEATED, "stream": REPEATED}
    return pa.schema([pa.field(f.name, encoded.get(f.name, f.type)) for f in part])


def repeated(array: pa.Array) -> pa.Array:
    """An array of :data:`REPEATED`, from any type of strings. The dictionary, which goes into the file, is no longer
    than the array."""
    if not pa.types.is_dictionary(array.type):
        return _as_string(array).dictionary_encode()
    names = array.dictionary
    if len(names) > len(array) or names.null_count:
        return array.cast(pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(array.indices.cast(pa.int32()), _as_string(names))


def _as_string(array: pa.Array) -> pa.Array:
    return array if array.type == pa.string() else array.cast(pa.string())


def _repeated(values: list[Any], lengths: list[int]) -> pa.Array:
    arrays = [
        constant(value, n, REPEATED) if value is None or isinstance(value, str) else repeated(value)
        for value, n in zip(values, lengths, strict=True)
    ]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _low_cardinality(values: list[str | pa.Array | None], lengths: list[int]) -> pa.Array:
    if any(isinstance(v, pa.Array) for v in values):
        return _arrays(values, lengths, pa.string()).dictionary_encode().cast(LOW_CARDINALITY)
    known = sorted({v for v in values if v is not None})
    if len(known) <= 1 and (not known or None not in values):
        return constant(known[0] if known else None, sum(lengths), LOW_CARDINALITY)
    codes = np.repeat([-1 if v is None else known.index(v) for v in values], lengths).astype(np.int8)
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(known, pa.string()))


def _integers(values: list[Any], lengths: list[int], kind: pa.DataType) -> pa.Array:
    """Negative = null."""
    if all(v is None for v in values):
        return pa.nulls(sum(lengths), kind)
    if all(isinstance(v, int) for v in values) and len(set(values)) == 1:
        return constant(values[0], sum(lengths), kind)
    joined = np.concatenate(
        [
            v if isinstance(v, np.ndarray) else np.full(n, -1 if v is None else v, np.int64)
            for v, n in zip(values, lengths, strict=True)
        ]
    )
    null = joined < 0
    return pa.array(joined, mask=null if null.any() else None).cast(kind)


def _arrays(values: list[Any], lengths: list[int], kind: pa.DataType) -> pa.Array:
    """Of each chunk an array, or one value for all of its rows."""
    if not any(isinstance(v, (pa.Array, np.ndarray)) for v in values) and len(set(values)) == 1:
        return constant(values[0], sum(lengths), kind)
    arrays = [_array(v, n, kind) for v, n in zip(values, lengths, strict=True)]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _array(value: Any, n: int, kind: pa.DataType) -> pa.Array:
    if isinstance(value, np.ndarray):
        return pa.array(value, kind)
    if not isinstance(value, pa.Array):
        return constant(value, n, kind)
    return value if value.type == kind else value.cast(kind)


def _extra(chunks: Sequence[FlightColumns], lengths: list[int], wanted: pa.Field) -> pa.Array:
    values = [
        c.extra.column(wanted.name) if c.extra is not None and wanted.name in c.extra.schema.names else None
        for c in chunks
    ]
    return _arrays(values, lengths, wanted.type)


def _reasons(chunks: Sequence[FlightColumns], n: int) -> dict[str, pa.Array]:
    kinds = {"status": pa.string(), "code": pa.int32(), "info": pa.string()}
    if not any(c.reasons for c in chunks):
        return {name: pa.nulls(n, kind) for name, kind in kinds.items()}
    which = np.full(n, -1, np.int32)
    distinct: dict[Reason, int] = {}
    start = 0
    for chunk in chunks:
        for row, reason in chunk.reasons.items():
            which[start + row] = distinct.setdefault(reason, len(distinct))
        start += len(chunk)
    index = pa.array(which, mask=which < 0)
    parts = zip(*distinct, strict=True)
    return {name: pa.array(values, kind).take(index) for (name, kind), values in zip(kinds.items(), parts, strict=True)}
