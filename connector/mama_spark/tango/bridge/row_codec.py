"""Row codec of Tango: encodes rows as log records with values, which an event source serves. Pure.

Numbers of attributes whose names have the same length are encoded together, as a numpy structured array; texts,
spectra, images and rows without a value one by one. Equal rows become equal records: the record of a row without a time
has none, and readers use the time at which the log stored it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.errors import BadRow, BadTopic, PublishError
from mama_spark.contracts.message import EncodedRows, Int64s

from ..events.event_codec import LITTLE, usual_call, write_data
from ..events.frame_layout import FrameLayout
from ..giop.cdr import CdrError
from ..log.records import RecordFrames, RecordHeads, RecordKind, encode, record_topic
from ..topics import IDL, BadEventTopic, Topic, event_topic, is_publishable
from ..types import (
    DTYPES,
    KIND_OF,
    NO_DIM,
    ONE,
    AttributeValue,
    Content,
    DataType,
    DevState,
    Dim,
    Encoded,
    EventType,
    Format,
    Quality,
    ValueKind,
)
from .columns import COLUMNS, REQUIRED, ValueForm, check, form_of, numbers, out_of_range

_CALL = usual_call(0)
_REMEMBERED = 65536
_LAST_TIME_NS = 2**31 * 1_000_000_000  #: end of the times of Tango, whose seconds have 32 bits, in nanoseconds
_SPLIT = "\n"  #: separates device and attribute; not allowed in names
_OUT_OF_RANGE = "the value is outside the range of DevULong64, 0 to 2^64 - 1"
_FIXED = ("state", "status")  #: attributes that every device has
_TEXT = ValueForm(DataType.STRING, Format.SCALAR)

Bad = dict[int, PublishError]


@dataclass(frozen=True, slots=True)
class AttributeTopics:
    """Topics of the values of one attribute, whose ``name`` is as in the row. ``record``: topic of its records in the
    log; device and attribute if these are invalid. ``error``: why they are; None: they are not, and the others are
    there."""

    record: str
    error: PublishError | None = None
    topic: Topic | None = None
    frame: bytes = b""
    name: str = ""

    def is_one_of(self, names: Sequence[str]) -> bool:
        return self.topic is not None and self.topic.attribute in names


class RecordCodec:
    """A :class:`~mama_spark.contracts.message.RowCodec`. It caches the topics of attributes and is not thread-safe.
    ``source`` is the name of the event source, which is the host in topics, ``prefix`` the first part of topics in the
    log."""

    columns: ClassVar[Mapping[str, str]] = COLUMNS
    needed: ClassVar[Sequence[str]] = REQUIRED
    takes_others: ClassVar[bool] = False

    def __init__(self, source: str, prefix: str) -> None:
        self._source, self._prefix = source, prefix
        self._topics: dict[str, AttributeTopics] = {}

    def check(self, schema: pa.Schema) -> None:
        check(schema)

    def encode(self, rows: pa.RecordBatch) -> EncodedRows:
        bad: Bad = {}
        codes, attribute_topics = self._find_topics(rows, bad)
        times = _times(rows, bad)
        qualities = _qualities(rows, bad)
        values = rows.column("value")
        has_value = _have_values(values, qualities, bad)
        form = form_of(values.type)
        errors = [p.error for p in attribute_topics]
        if form != _TEXT:
            error = BadRow("the attribute is State or Status, whose values must be strings")
            errors = [error if p.is_one_of(_FIXED) else p.error for p in attribute_topics]
        if any(errors):
            for row, code in enumerate(codes.tolist()):
                if (found := errors[code]) is not None:
                    bad.setdefault(row, found)
        good = np.ones(len(codes), np.bool_)
        good[list(bad)] = False
        datas: list[bytes] = [b""] * len(codes)
        batch = _Batch(codes, attribute_topics, times, qualities, form, datas, bad)
        if form.is_number and form.format is Format.SCALAR:
            for row in out_of_range(values).tolist():
                bad.setdefault(row, BadRow(_OUT_OF_RANGE))
                good[row] = False
            _write_numbers(batch, values, np.flatnonzero(good & has_value))
        else:
            _write_others(batch, values, np.flatnonzero(good & has_value))
        _write_invalid(batch, np.flatnonzero(good & ~has_value))
        of_row, n = [attribute_topics[code].frame for code in codes.tolist()], len(datas)
        payloads = encode(RecordHeads(RecordKind.PUSH, times), RecordFrames(of_row, [LITTLE] * n, [_CALL] * n, datas))
        records = pa.array([p.record for p in attribute_topics], pa.string())
        topics = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), records)
        return EncodedRows(topics, payloads, sorted(bad.items()))

    def _find_topics(self, rows: pa.RecordBatch, bad: Bad) -> tuple[Int64s, list[AttributeTopics]]:
        """Index of each row into the topics, shape (n,); and the topics."""
        parts = []
        for name in ("device", "attribute"):
            column = rows.column(name)
            for row in np.flatnonzero(np.asarray(column.is_null())).tolist():
                bad.setdefault(row, BadTopic(f"the {name} is null"))
            parts.append(column.fill_null(""))
        coded = pc.binary_join_element_wise(*parts, _SPLIT).dictionary_encode()
        if len(self._topics) > _REMEMBERED:
            self._topics.clear()
        attribute_topics = [self._topics_of(name) for name in coded.dictionary.to_pylist()]
        return coded.indices.to_numpy().astype(np.int64), attribute_topics

    def _topics_of(self, names: str) -> AttributeTopics:
        if names not in self._topics:
            device, _, attribute = names.partition(_SPLIT)
            try:
                self._topics[names] = attribute_topics_of(self._source, self._prefix, device, attribute)
            except PublishError as e:
                self._topics[names] = AttributeTopics(f"{device}/{attribute}", e)
        return self._topics[names]


def attribute_topics_of(source: str, prefix: str, device: str, attribute: str) -> AttributeTopics:
    """Make the topics of an attribute.

    :raises BadTopic: Tango does not allow the name of the device or attribute
    """
    if device.count("/") != 2 or not all(device.split("/")):
        raise BadTopic(f"invalid device name, it must be domain/family/member: {device[:200]!r}")
    if not attribute or "/" in attribute:
        raise BadTopic(f"invalid attribute name: {attribute[:200]!r}")
    both = f"{device}/{attribute}"
    if len(both) > 255 or not all(map(is_publishable, both.split("/"))):
        raise BadTopic(f"Tango does not allow this attribute name: {both[:200]!r}")
    try:
        topic = event_topic(source, device, attribute, EventType.CHANGE, dbase=False)
    except BadEventTopic as e:
        raise BadTopic(str(e)) from e
    return AttributeTopics(record_topic(topic, prefix), None, topic, topic.encode(), attribute)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Columns of n rows, shape (n,): ``codes``, indices into ``attribute_topics``; ``times``, nanoseconds since the
    epoch, 0: none; ``datas``, the fourth frames, empty until they are encoded."""

    codes: Int64s
    attribute_topics: list[AttributeTopics]
    times: Int64s
    qualities: npt.NDArray[np.uint32]
    form: ValueForm
    datas: list[bytes]
    bad: Bad

    def topics(self, row: int) -> AttributeTopics:
        return self.attribute_topics[int(self.codes[row])]

    def is_state(self, row: int) -> bool:
        return self.form.data_type is DataType.STRING and self.topics(row).is_one_of(("state",))

    def write(self, row: int, kind: ValueKind, content: Content, r_dim: Dim, data_type: DataType) -> None:
        topics = self.topics(row)
        assert topics.topic is not None
        value = AttributeValue(
            topics.name, kind, content, int(self.times[row]), Quality(int(self.qualities[row])), self.form.format,
            data_type, r_dim,
        )  # fmt: skip
        try:
            self.datas[row] = write_data(topics.topic, value)
        except CdrError as e:
            self.bad[row] = BadRow(f"the value cannot be encoded: {e}")


def _times(rows: pa.RecordBatch, bad: Bad) -> Int64s:
    """Times in nanoseconds since the epoch, shape (n,); 0: none."""
    if "time" not in rows.schema.names:
        return np.zeros(rows.num_rows, np.int64)
    column = rows.column("time")
    unit = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}[getattr(column.type, "unit", "ns")]
    given = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    out = (given < 0) | (given >= _LAST_TIME_NS // unit)
    for row in np.flatnonzero(out).tolist():
        bad.setdefault(row, BadRow("the time must be between 1970 and 2038, the range of times in Tango"))
    times: Int64s = np.where(out, 0, given) * unit
    return times


def _qualities(rows: pa.RecordBatch, bad: Bad) -> npt.NDArray[np.uint32]:
    """Shape (n,); VALID for rows without a quality."""
    if "quality" not in rows.schema.names:
        return np.zeros(rows.num_rows, np.uint32)
    coded = rows.column("quality").fill_null(Quality.VALID.name).dictionary_encode()
    names = [word.strip().upper().removeprefix("ATTR_") for word in coded.dictionary.to_pylist()]
    qualities = Quality.__members__
    table = np.array([qualities.get(word, -1) for word in names], np.int64)
    found = table[coded.indices.to_numpy()] if len(table) else np.zeros(0, np.int64)
    for row in np.flatnonzero(found < 0).tolist():
        bad.setdefault(row, BadRow(f"{coded[row].as_py()!r:.50} is no quality; give one of {', '.join(qualities)}"))
    return np.where(found < 0, 0, found).astype(np.uint32)


def _have_values(values: pa.Array, qualities: npt.NDArray[np.uint32], bad: Bad) -> npt.NDArray[np.bool_]:
    """Flags of the rows that have a value to send, shape (n,). INVALID values have no data in Tango."""
    invalid = qualities == Quality.INVALID
    null = np.asarray(values.is_null())
    for row in np.flatnonzero(null & ~invalid).tolist():
        bad.setdefault(row, BadRow("the value is null, which is allowed only with the quality INVALID"))
    has_value: npt.NDArray[np.bool_] = ~null & ~invalid
    return has_value


def _write_numbers(batch: _Batch, values: pa.Array, rows: Int64s) -> None:
    lengths = np.array([len(p.name) for p in batch.attribute_topics], np.int64)
    found = numbers(values.take(pa.array(rows)))
    of_row = lengths[batch.codes[rows]]
    for length in np.unique(of_row).tolist():
        mine = np.flatnonzero(of_row == length)
        for row, data in zip(rows[mine].tolist(), _frames(batch, length, rows[mine], found[mine]), strict=True):
            batch.datas[row] = data


def _frames(batch: _Batch, length: int, rows: Int64s, read: npt.NDArray[Any]) -> list[bytes]:
    layout = FrameLayout(True, IDL, KIND_OF[batch.form.data_type], False, length)
    names = np.zeros((len(batch.attribute_topics), length), np.uint8)
    for at, topics in enumerate(batch.attribute_topics):
        if len(topics.name) == length:
            names[at] = np.frombuffer(topics.name.encode("ascii"), np.uint8)
    times, qualities = batch.times[rows], batch.qualities[rows]
    return layout.encode(names[batch.codes[rows]], batch.form.data_type, times, qualities, read)


def _write_invalid(batch: _Batch, rows: Int64s) -> None:
    for row in rows.tolist():
        data_type = DataType.STATE if batch.is_state(row) else batch.form.data_type
        batch.write(row, ValueKind.NO_DATA, None, NO_DIM, data_type)


def _write_others(batch: _Batch, values: pa.Array, rows: Int64s) -> None:
    """Encode texts, bytes, spectra and images: a loop over rows, since each has another length."""
    form, kind = batch.form, KIND_OF[batch.form.data_type]
    for row in rows.tolist():
        value = values[row]
        try:
            if form.format is not Format.SCALAR:
                elements, r_dim = _elements(value, form)
                batch.write(row, kind, elements, r_dim, form.data_type)
            elif batch.is_state(row):
                batch.write(row, ValueKind.DEVICE_STATE, _state(value.as_py()), ONE, DataType.STATE)
            elif form.data_type is DataType.STRING:
                batch.write(row, kind, (value.as_py(),), ONE, form.data_type)
            else:
                batch.write(row, kind, (_encoded(value.as_py()),), ONE, form.data_type)
        except BadRow as e:
            batch.bad[row] = e


def _elements(value: Any, form: ValueForm) -> tuple[Content, Dim]:
    """Elements and dimensions of a spectrum or image (an Arrow scalar of lists)."""
    flat = value.values
    if form.format is Format.IMAGE:
        lengths = set(pc.list_value_length(flat).to_pylist())
        if len(lengths) > 1 or None in lengths:
            raise BadRow("the rows of an image must be there and have one length")
        x, y = (lengths.pop() if lengths else 0), len(flat)
        flat, r_dim = flat.flatten(), Dim(x, y) if x and y else NO_DIM
    else:
        r_dim = Dim(len(flat), 0)
    if flat.null_count:
        raise BadRow("an element of the value is null")
    if form.is_number and len(out_of_range(flat)):
        raise BadRow(_OUT_OF_RANGE)
    content = numbers(flat).astype(DTYPES[KIND_OF[form.data_type]]) if form.is_number else tuple(flat.to_pylist())
    return content, r_dim


def _state(name: str) -> DevState:
    try:
        return DevState[name.strip().upper()]
    except KeyError:
        raise BadRow(f"{name[:50]!r} is no state; there are {', '.join(DevState.__members__)}") from None


def _encoded(value: Any) -> Encoded:
    if isinstance(value, bytes):
        return Encoded("", value)
    fields = {name.lower(): part for name, part in value.items()}
    if fields["format"] is None or fields["data"] is None:
        raise BadRow("format or data of the value is null")
    return Encoded(fields["format"], fields["data"])
