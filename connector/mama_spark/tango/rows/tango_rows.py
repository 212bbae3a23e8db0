"""Converts records of Tango events to the column ``tango`` of ``mamasub``: one struct a record, batch by batch. Pure.

A value is in the list of its type: ``value_double`` (FLOAT, DOUBLE), ``value_long`` (SHORT, LONG, LONG64, UCHAR,
USHORT, ULONG, ENUM), ``value_ulong`` (ULONG64), ``value_bool``, ``value_string`` (STRING, and STATE by name),
``value_encoded``; what was last set in the list of the same name with ``set_``. A scalar is a list of one element, an
image its rows one after the other, with its dimensions. Records of which the attribute's value could not be read have
``errors``, and what has no columns of its own (configurations, interfaces, pipes, data ready) is JSON in ``detail``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Never

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from mama_spark.contracts.errors import MamaError
from mama_spark.contracts.message import Int64s
from mama_spark.packing.json_text import with_number_names

from ..events.batch_decoder import BatchDecoder, EventColumns
from ..events.event_codec import Event
from ..log.records import (
    BadEventRecord,
    DecodedRecords,
    GapCause,
    RecordKind,
    RecordTopic,
    decode,
    errors_of,
    parse_record_topic,
)
from ..topics import HEARTBEAT, BadEventTopic, read_topic
from ..types import AttributeValue, DataType, DevError, DevState, Encoded, Format, PipeData, Quality, ValueKind

CORRUPT = "corrupt"
_NO_FAULTS: Mapping[int, str] = {}
#: kind of record -> what ``kind`` and ``origin`` say
KINDS_AND_ORIGINS: dict[RecordKind, tuple[str, str | None]] = {
    RecordKind.EVENT: ("event", "event"),
    RecordKind.INITIAL: ("event", "initial"),
    RecordKind.RESUBSCRIBED: ("event", "resubscription"),
    RecordKind.CHECKED: ("event", "check"),
    RecordKind.PUSH: ("event", "push"),
    RecordKind.ERROR: ("error", None),
    **{k: (k.name.lower(), None) for k in RecordKind if k not in (1, 2, 3, 4, 7, 14)},
}
_HAS_FRAMES = np.zeros(256, np.bool_)
_HAS_FRAMES[[kind for kind, (name, _) in KINDS_AND_ORIGINS.items() if name in ("event", "error")]] = True
_HAS_COUNTS = np.zeros(256, np.bool_)
_HAS_COUNTS[[RecordKind.GAP, RecordKind.RESTART]] = True

_NUMBERS: dict[str, tuple[npt.DTypeLike, frozenset[ValueKind]]] = {
    "double": (np.float64, frozenset((ValueKind.FLOAT, ValueKind.DOUBLE))),
    "long": (
        np.int64,
        frozenset(
            (ValueKind.SHORT, ValueKind.LONG, ValueKind.LONG64, ValueKind.UCHAR, ValueKind.USHORT, ValueKind.ULONG)
        ),
    ),
    "ulong": (np.uint64, frozenset((ValueKind.ULONG64,))),
    "bool": (np.bool_, frozenset((ValueKind.BOOL,))),
}
_COLUMN_OF = {kind: name for name, (_, kinds) in _NUMBERS.items() for kind in kinds}
_COLUMN_OF |= {ValueKind.STRING: "string", ValueKind.STATE: "string", ValueKind.DEVICE_STATE: "string"}
_COLUMN_OF |= {ValueKind.ENCODED: "encoded"}
_TYPE_NAMES = {ValueKind.BOOL: "BOOLEAN", ValueKind.DEVICE_STATE: "STATE", ValueKind.NO_DATA: None}


class CorruptRecord(MamaError):
    """A corrupt record, with ``failOnCorrupt``."""


class TangoColumns:
    """Makes the column of batches of records, and caches layouts of events. For one thread.

    :param column_type: type of the column, what Spark makes of the type; None: it is not wanted
    :param fields: none: the column has all that a record holds
    :param strict: raise for a corrupt record, instead of describing it in its row
    """

    def __init__(self, column_type: pa.StructType | None, fields: Sequence[Never] = (), strict: bool = False) -> None:
        self._type, self._strict = column_type, strict
        self.bad = 0
        self._decoder = BatchDecoder()

    def columns(
        self, payloads: pa.Array, topics: pa.Array, sequences: Int64s, faults: Mapping[int, str] = _NO_FAULTS
    ) -> dict[str, pa.Array]:
        """The column, if it is wanted.

        :param topics: topics of the records, for those whose frames do not say
        :param faults: record -> what is wrong with its headers, without which it can be read
        :raises CorruptRecord: a record is corrupt, with ``strict``
        """
        if self._type is None:
            return {}
        found = decode(payloads)
        events, rows = self._events(found)
        reasons: dict[int, str] = {row: str(error) for row, error in found.bad.items()}
        reasons.update((int(rows[at]), f"no event of Tango: {error}") for at, error in events.bad.items())
        self.bad += len(reasons)
        if self._strict and reasons:
            row = min(reasons)
            raise CorruptRecord(f"record {sequences[row]}: {reasons[row]}")
        cells = _cells(found, events, rows)
        cells |= _names(found, topics)
        kinds, origins = cells["kind"], cells["origin"]
        for row in reasons:
            kinds[row], origins[row] = CORRUPT, None
        reasons = dict(faults) | reasons
        cells["reason"] = [reasons.get(row) for row in range(len(found))] if reasons else pa.nulls(len(found))
        arrays = [_array(cells[f.name], f.type) for f in self._type]
        return {"tango": pa.StructArray.from_arrays(arrays, fields=list(self._type))}

    def _events(self, found: DecodedRecords) -> tuple[EventColumns, npt.NDArray[np.int64]]:
        """The events of the frames, and the rows that have frames."""
        rows = np.flatnonzero(_HAS_FRAMES[found.kind])
        frames = found.frames.columns()
        if len(rows) < len(found):
            frames = tuple([column[row] for row in rows.tolist()] for column in frames)  # type: ignore[assignment]
        return self._decoder.decode(*frames), rows


def _array(cells: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(cells, pa.Array):
        return cells if cells.type == kind else cells.cast(kind)
    return pa.array(cells, kind)


def _cells(found: DecodedRecords, events: EventColumns, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    n = len(found)
    kinds_and_origins = [KINDS_AND_ORIGINS.get(RecordKind(k)) if k else None for k in range(max(RecordKind) + 1)]
    kinds = [kinds_and_origins[k] or (CORRUPT, None) for k in found.kind.tolist()]
    good = found.kind > 0
    values = _Values(n)
    values.fill(events, rows)
    for row in np.flatnonzero((found.kind == RecordKind.ERROR) & (found.count > 0)).tolist():
        values.describe(row, {name: int(getattr(found, name)[row]) for name in ("count", "first", "last")})
    counts = _HAS_COUNTS[found.kind]
    time = np.zeros(n, np.int64)
    time[rows] = events.time
    causes = [None if c == GapCause.NONE else GapCause(c).name.lower() for c in range(max(GapCause) + 1)]
    return {
        "kind": [kind for kind, _ in kinds],
        "origin": [origin for _, origin in kinds],
        "received": pa.array(found.received, mask=~good),
        "ctr": pa.array(found.ctr.astype(np.int64), mask=~_HAS_FRAMES[found.kind]),
        "data_time": pa.array(time, mask=time == 0),
        "gap_from": pa.array(found.first.astype(np.int64), mask=~counts),
        "gap_to": pa.array(found.last.astype(np.int64), mask=~counts),
        "gap_count": pa.array(found.count, mask=(found.kind != RecordKind.GAP) | (found.count < 0)),
        "cause": [causes[c] if c < len(causes) else None for c in found.cause.tolist()],
        **values.cells(found),
    }


def _names(found: DecodedRecords, topics: pa.Array) -> dict[str, Any]:
    """Host, device, attribute, event: from the frames, and where there are none, from the topics of the log."""
    frames = pa.array(found.frames.topics, pa.binary()).dictionary_encode()
    named = [_from_frame(topic) for topic in frames.dictionary.to_pylist()]
    codes = frames.indices.to_numpy()
    missing = np.array([name is None for name in named], np.bool_)[codes]
    if missing.any():
        others = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
        more = [_from_topic(topic) for topic in others.dictionary.to_pylist()]
        codes = np.where(missing, others.indices.to_numpy() + len(named), codes)
        named += more
    columns = list(zip(*(name or (None,) * 4 for name in named), strict=True)) or [()] * 4
    index = pa.array(codes)
    heads = ("tango_host", "device", "attribute", "event")
    return {head: pa.array(column, pa.string()).take(index) for head, column in zip(heads, columns, strict=True)}


_Name = tuple[str | None, str | None, str | None, str | None]


def _from_frame(frame: bytes) -> _Name | None:
    try:
        topic = read_topic(frame)
    except BadEventTopic:
        return None
    event = HEARTBEAT if topic.event is None else topic.event.wire_name
    return topic.tango_host, topic.device, topic.attribute, event


def _from_topic(text: str) -> _Name | None:
    try:
        found: RecordTopic = parse_record_topic(text)
    except BadEventRecord:
        return None
    return found.tango_host, found.device, found.attribute, found.event


@dataclass
class _Lists:
    """One column of lists of numbers, in pieces."""

    dtype: npt.DTypeLike
    scalars: list[tuple[npt.NDArray[np.int64], npt.NDArray[Any]]] = field(default_factory=list)  # rows and values
    single: list[tuple[int, npt.NDArray[Any]]] = field(default_factory=list)

    def array(self, n: int) -> pa.Array:
        lengths = np.full(n, -1, np.int64)
        for rows, _ in self.scalars:
            lengths[rows] = 1
        for row, values in self.single:
            lengths[row] = len(values)
        offsets = np.zeros(n + 1, np.int64)
        np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
        flat = np.zeros(int(offsets[-1]), self.dtype)
        for rows, values in self.scalars:
            flat[offsets[rows]] = values
        for row, values in self.single:
            flat[offsets[row] : offsets[row + 1]] = values
        starts = pa.array(offsets.astype(np.int32), mask=np.append(lengths < 0, False))
        numbers = pa.array(flat)
        if numbers.type == pa.uint64():
            numbers = numbers.cast(pa.decimal128(20, 0))
        return pa.ListArray.from_arrays(starts, numbers)


class _Values:
    def __init__(self, n: int) -> None:
        self._n = n
        self._numbers = {
            f"{part}_{name}": _Lists(dtype) for part in ("value", "set") for name, (dtype, _) in _NUMBERS.items()
        }
        self._texts: dict[str, list[Any]] = {
            f"{part}_{name}": [None] * n for part in ("value", "set") for name in ("string", "encoded")
        }
        self._dims = np.full((4, n), -1, np.int32)
        self._quality = np.full(n, -1, np.int8)
        self._format = np.full(n, -1, np.int8)
        self._types: list[str | None] = [None] * n
        self._errors: dict[int, tuple[DevError, ...]] = {}
        self._details: dict[int, str] = {}

    def fill(self, events: EventColumns, rows: npt.NDArray[np.int64]) -> None:
        """Take the events, which stand in these rows."""
        self._quality[rows] = events.quality
        names = {number: _type_name(number) for number in np.unique(events.data_type).tolist()}
        for row, number in zip(rows.tolist(), events.data_type.tolist(), strict=True):
            self._types[row] = names[number]
        for group in events.scalars:
            at = rows[group.rows]
            column = _COLUMN_OF[group.kind]
            self._numbers[f"value_{column}"].scalars.append((at, group.read))
            if group.written is not None:
                self._numbers[f"set_{column}"].scalars.append((at, group.written))
            self._format[at] = Format.SCALAR
            self._dims[0, at], self._dims[1:, at] = 1, 0
            self._dims[2, at] = 0 if group.written is None else 1
            self._guess_types(at.tolist(), group.kind)
        for where, event in events.others.items():
            if isinstance(event, Event):
                self._other(int(rows[where]), event)

    def _guess_types(self, rows: list[int], kind: ValueKind) -> None:
        """Older servers do not send the type with the value."""
        for row in rows:
            if self._types[row] is None:
                self._types[row] = _TYPE_NAMES.get(kind, kind.name)

    def describe(self, row: int, fields: dict[str, int]) -> None:
        self._details[row] = orjson.dumps(fields).decode()

    def _other(self, row: int, event: Event) -> None:
        data = event.data
        if event.errors:
            self._errors[row] = event.errors
        if isinstance(data, AttributeValue):
            self._value(row, data)
        elif data is not None:
            described: Any = dataclasses.asdict(data) if not isinstance(data, PipeData) else data
            detail = orjson.dumps(with_number_names(described), default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
            self._details[row] = detail.decode()

    def _value(self, row: int, value: AttributeValue) -> None:
        if value.errors:
            self._errors[row] = value.errors
        self._format[row] = value.format
        self._dims[:, row] = (*value.r_dim, *value.w_dim)
        self._guess_types([row], value.kind)
        name = _COLUMN_OF.get(value.kind)
        if name is None:
            return
        for part, content in (("value", value.read), ("set", value.written)):
            if isinstance(content, np.ndarray):
                self._numbers[f"{part}_{name}"].single.append((row, content))
            elif content is not None:
                elements = (content,) if isinstance(content, DevState) else content
                self._texts[f"{part}_{name}"][row] = [_text(element) for element in elements]

    def cells(self, found: DecodedRecords) -> dict[str, Any]:
        n = self._n
        for row in np.flatnonzero((found.kind == RecordKind.OFFLINE) | (found.kind == RecordKind.SUSPECT)).tolist():
            with contextlib.suppress(BadEventRecord):
                self._errors[row] = errors_of(found, row)
        heads = ("dim_x", "dim_y", "w_dim_x", "w_dim_y")
        return {
            "quality": _named(self._quality, [q.name for q in Quality]),
            "format": _named(self._format, [f.name for f in Format]),
            "data_type": self._types,
            **{head: pa.array(dims, mask=dims < 0) for head, dims in zip(heads, self._dims, strict=True)},
            **{name: lists.array(n) for name, lists in self._numbers.items()},
            **self._texts,
            "errors": [_error_structs(self._errors.get(row)) for row in range(n)] if self._errors else pa.nulls(n),
            "detail": [self._details.get(row) for row in range(n)] if self._details else pa.nulls(n),
        }


def _type_name(number: int) -> str | None:
    if number < 0:
        return None
    try:
        return DataType(number).name
    except ValueError:
        return str(number)


def _named(numbers: npt.NDArray[np.int8], names: list[str]) -> pa.Array:
    """Names of the numbers; null for numbers below 0."""
    index = pa.array(numbers.astype(np.int32), mask=numbers < 0)
    return pa.DictionaryArray.from_arrays(index, pa.array(names)).cast(pa.string())


def _text(element: Any) -> Any:
    if isinstance(element, Encoded):
        return {"format": element.format, "data": element.data}
    return element.name if isinstance(element, DevState) else element


def _error_structs(errors: tuple[DevError, ...] | None) -> list[dict[str, str]] | None:
    if not errors:
        return None
    return [{"reason": e.reason, "severity": e.severity.name, "desc": e.desc, "origin": e.origin} for e in errors]


def _plain(thing: Any) -> Any:
    """The JSON value for what JSON cannot hold."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return with_number_names({f.name: getattr(thing, f.name) for f in dataclasses.fields(thing)})
    if isinstance(thing, bytes):
        return thing.hex()
    if isinstance(thing, tuple):
        return list(thing)
    raise TypeError(type(thing).__name__)
