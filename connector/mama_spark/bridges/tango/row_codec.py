"""Rows become records of a log of Tango events: values to be served as an attribute's events. Pure.

Numbers of one length of name are one numpy array of structures; texts, spectra, images and rows without a value go one
by one. Equal rows become equal records: a row without a time gets none, and whoever reads the record takes the time at
which the log stored it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.bridge import EncodedRows
from mama_spark.errors import BadRow, BadTopic, PublishError
from mama_spark.message import Int64s
from mama_spark.tango import topics
from mama_spark.tango.events.event_codec import write_data
from mama_spark.tango.events.frame_layout import FrameLayout
from mama_spark.tango.events.frames import LITTLE, usual_call
from mama_spark.tango.giop.cdr import CdrError
from mama_spark.tango.log.records import RecordFrames, RecordHeads, RecordKind, encode, record_topic
from mama_spark.tango.topics import IDL, Topic, event_topic
from mama_spark.tango.types import (
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

from .columns import COLUMNS, NEEDED, ValueForm, check, form_of, numbers, unfit

_CALL = usual_call(0)
_REMEMBERED = 65536
_LAST_TIME = 2**31 * 1_000_000_000  #: seconds of Tango's times are 32 bits
_SPLIT = "\n"  #: between device and attribute; no name has it
_UNFIT = "a number does not fit a DevULong64"
_EVERYONES = ("state", "status")  #: attributes that every device has
_TEXT = ValueForm(DataType.STRING, Format.SCALAR)
_QUALITIES = {quality.name: quality for quality in Quality}

Bad = dict[int, PublishError]


@dataclass(frozen=True, slots=True)
class EventTopic:
    """Where the values of one attribute go.

    :ivar name: of the attribute, as the row spells it
    :ivar record: topic of its records
    """

    topic: Topic
    frame: bytes
    name: str
    record: str


class RecordCodec:
    """See :class:`~mama_spark.bridge.RowCodec`. Remembers the attributes it saw; for one thread.

    :param source: the name of the event source, in the place of the host in topics
    :param prefix: of the records' topics
    """

    def __init__(self, source: str, prefix: str) -> None:
        self._source, self._prefix = source, prefix.rstrip(".")
        self._places: dict[str, EventTopic | PublishError] = {}

    @property
    def columns(self) -> Mapping[str, str]:
        return COLUMNS

    @property
    def needed(self) -> Sequence[str]:
        return NEEDED

    def check(self, schema: pa.Schema) -> None:
        check(schema)

    def encode(self, rows: pa.RecordBatch) -> EncodedRows:
        bad: Bad = {}
        codes, places, shown = self._find(rows, bad)
        times = _times(rows, bad)
        qualities = _qualities(rows, bad)
        values = rows.column("value")
        there = _there(values, qualities, bad)
        form = form_of(values.type)
        for row in _rows_without_place(codes, places):
            place = places[codes[row]]
            assert isinstance(place, PublishError)
            bad.setdefault(row, place)
        if form != _TEXT:
            own = np.array([isinstance(p, EventTopic) and p.topic.attribute in _EVERYONES for p in places], np.bool_)
            for row in np.flatnonzero(own[codes]).tolist() if own.any() else ():
                bad.setdefault(row, BadRow("State and Status are each device's own: their values are strings"))
        good = np.ones(len(codes), np.bool_)
        good[list(bad)] = False
        datas: list[bytes] = [b""] * len(codes)
        batch = _Batch(codes, places, times, qualities, form, datas, bad)
        if form.is_number and form.format is Format.SCALAR:
            for row in unfit(values).tolist():
                bad.setdefault(row, BadRow(_UNFIT))
                good[row] = False
            _write_numbers(batch, values, np.flatnonzero(good & there))
        else:
            _write_others(batch, values, np.flatnonzero(good & there))
        _write_nothing(batch, np.flatnonzero(good & ~there))
        frames = [p.frame if isinstance(p, EventTopic) else b"" for p in places]
        of_row = [frames[code] for code in codes.tolist()]
        n = len(datas)
        payloads = encode(RecordHeads(RecordKind.PUSH, times), RecordFrames(of_row, [LITTLE] * n, [_CALL] * n, datas))
        return EncodedRows(
            pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), shown), payloads, sorted(bad.items())
        )

    def _find(self, rows: pa.RecordBatch, bad: Bad) -> tuple[Int64s, list[EventTopic | PublishError], pa.Array]:
        """For each row the number of its place; the places; and the topics of their records, for people where there is
        none."""
        parts = []
        for name in ("device", "attribute"):
            column = rows.column(name)
            for row in np.flatnonzero(np.asarray(column.is_null())).tolist():
                bad.setdefault(row, BadTopic(f"the {name} is null"))
            parts.append(column.fill_null(""))
        coded = pc.binary_join_element_wise(*parts, _SPLIT).dictionary_encode()
        if len(self._places) > _REMEMBERED:
            self._places.clear()
        names = coded.dictionary.to_pylist()
        places = [self._place(name) for name in names]
        shown = [
            p.record if isinstance(p, EventTopic) else name.replace(_SPLIT, "/")
            for p, name in zip(places, names, strict=True)
        ]
        return coded.indices.to_numpy().astype(np.int64), places, pa.array(shown, pa.string())

    def _place(self, names: str) -> EventTopic | PublishError:
        if names not in self._places:
            device, _, attribute = names.partition(_SPLIT)
            try:
                self._places[names] = event_topic_of(self._source, self._prefix, device, attribute)
            except PublishError as e:
                self._places[names] = e
        return self._places[names]


def event_topic_of(source: str, prefix: str, device: str, attribute: str) -> EventTopic:
    """
    :raises BadTopic: one of the names cannot be one
    """
    if device.count("/") != 2 or not all(device.split("/")):
        raise BadTopic(f"no device (domain/family/member): {device[:200]!r}")
    if not attribute or "/" in attribute:
        raise BadTopic(f"no attribute: {attribute[:200]!r}")
    both = f"{device}/{attribute}"
    if len(both) > 255 or not both.isascii() or not both.isprintable() or any(c in both for c in "*?:>#. "):
        raise BadTopic(f"no name of an attribute in Tango: {both[:200]!r}")
    try:
        topic = event_topic(source, device, attribute, EventType.CHANGE, dbase=False)
    except topics.BadEventTopic as e:
        raise BadTopic(str(e)) from e
    return EventTopic(topic, topic.encode(), attribute, record_topic(topic, prefix))


@dataclass(frozen=True, slots=True)
class _Batch:
    """What all rows are written from, and where to: fourth frames to ``datas``."""

    codes: Int64s
    places: list[EventTopic | PublishError]
    times: Int64s
    qualities: npt.NDArray[np.uint32]
    form: ValueForm
    datas: list[bytes]
    bad: Bad

    def place(self, row: int) -> EventTopic:
        found = self.places[self.codes[row]]
        assert isinstance(found, EventTopic)
        return found

    def write(self, row: int, kind: ValueKind, content: Content, r_dim: Dim, data_type: DataType) -> None:
        place = self.place(row)
        value = AttributeValue(
            place.name, kind, content, int(self.times[row]), Quality(int(self.qualities[row])), self.form.format,
            data_type, r_dim,
        )  # fmt: skip
        try:
            self.datas[row] = write_data(place.topic, value)
        except CdrError as e:
            self.bad[row] = BadRow(f"the value cannot be sent: {e}")


# --- columns -----------------------------------------------------------------------------------------------


def _rows_without_place(codes: Int64s, places: list[EventTopic | PublishError]) -> list[int]:
    none = np.array([not isinstance(place, EventTopic) for place in places], np.bool_)
    return np.flatnonzero(none[codes]).tolist() if none.any() else []


def _times(rows: pa.RecordBatch, bad: Bad) -> Int64s:
    """Nanoseconds since the epoch; 0: not told."""
    if "time" not in rows.schema.names:
        return np.zeros(rows.num_rows, np.int64)
    column = rows.column("time")
    unit = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}[getattr(column.type, "unit", "ns")]
    given = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    out = (given < 0) | (given >= _LAST_TIME // unit)
    for row in np.flatnonzero(out).tolist():
        bad.setdefault(row, BadRow("the time is not between 1970 and 2038, which Tango's times are"))
    times: Int64s = np.where(out, 0, given) * unit
    return times


def _qualities(rows: pa.RecordBatch, bad: Bad) -> npt.NDArray[np.uint32]:
    """VALID where nothing is said."""
    if "quality" not in rows.schema.names:
        return np.zeros(rows.num_rows, np.uint32)
    coded = rows.column("quality").fill_null(Quality.VALID.name).dictionary_encode()
    words = [word.strip().upper().removeprefix("ATTR_") for word in coded.dictionary.to_pylist()]
    table = np.array([_QUALITIES.get(word, -1) for word in words], np.int64)
    found = table[coded.indices.to_numpy()] if len(table) else np.zeros(0, np.int64)
    for row in np.flatnonzero(found < 0).tolist():
        bad.setdefault(row, BadRow(f"{coded[row].as_py()!r:.50} is no quality; there are {', '.join(_QUALITIES)}"))
    return np.where(found < 0, 0, found).astype(np.uint32)


def _there(values: pa.Array, qualities: npt.NDArray[np.uint32], bad: Bad) -> npt.NDArray[np.bool_]:
    """Which rows have a value that is sent; Tango sends none that is INVALID."""
    invalid = qualities == Quality.INVALID
    null = np.asarray(values.is_null())
    for row in np.flatnonzero(null & ~invalid).tolist():
        bad.setdefault(row, BadRow("the value is null, which only the quality INVALID allows"))
    there: npt.NDArray[np.bool_] = ~null & ~invalid
    return there


# --- values ------------------------------------------------------------------------------------------------


def _write_numbers(batch: _Batch, values: pa.Array, rows: Int64s) -> None:
    """One number a row. The groups are few: the lengths that names have."""
    lengths = np.array([len(p.name) if isinstance(p, EventTopic) else 0 for p in batch.places], np.int64)
    found = numbers(values.take(pa.array(rows)))
    of_row = lengths[batch.codes[rows]]
    for length in np.unique(of_row).tolist():
        mine = np.flatnonzero(of_row == length)
        for row, data in zip(rows[mine].tolist(), _frames(batch, length, rows[mine], found[mine]), strict=True):
            batch.datas[row] = data


def _frames(batch: _Batch, length: int, rows: Int64s, found: npt.NDArray[Any]) -> list[bytes]:
    shape = FrameLayout(True, IDL, KIND_OF[batch.form.data_type], False, length)
    names = np.zeros((len(batch.places), length), np.uint8)
    for at, place in enumerate(batch.places):
        if isinstance(place, EventTopic) and len(place.name) == length:
            names[at] = np.frombuffer(place.name.encode("ascii"), np.uint8)
    block = np.zeros(len(rows), shape.dtype)
    for field, value in shape.constants.items():
        block[field] = value
    block["name"][:, :-1] = names[batch.codes[rows]]
    block["data_type"] = batch.form.data_type
    block["quality"] = batch.qualities[rows]
    block["read"] = found
    seconds, rest = np.divmod(batch.times[rows], 1_000_000_000)
    block["sec"], block["usec"], block["nsec"] = seconds, rest // 1000, rest % 1000
    octets, size = block.tobytes(), shape.dtype.itemsize
    return [octets[at : at + size] for at in range(0, len(octets), size)]


def _write_nothing(batch: _Batch, rows: Int64s) -> None:
    """INVALID: an event without data."""
    for row in rows.tolist():
        state = batch.form.data_type is DataType.STRING and batch.place(row).topic.attribute == "state"
        batch.write(row, ValueKind.NO_DATA, None, NO_DIM, DataType.STATE if state else batch.form.data_type)


def _write_others(batch: _Batch, values: pa.Array, rows: Int64s) -> None:
    """Texts, octets, spectra and images. A loop over rows: each has a length of its own."""
    form, kind = batch.form, KIND_OF[batch.form.data_type]
    for row in rows.tolist():
        value = values[row]
        try:
            if form.format is not Format.SCALAR:
                elements, r_dim = _elements(value, form)
                batch.write(row, kind, elements, r_dim, form.data_type)
            elif form.data_type is DataType.STRING and batch.place(row).topic.attribute == "state":
                batch.write(row, ValueKind.DEVICE_STATE, _state(value.as_py()), ONE, DataType.STATE)
            elif form.data_type is DataType.STRING:
                batch.write(row, kind, (value.as_py(),), ONE, form.data_type)
            else:
                batch.write(row, kind, (_encoded(value.as_py()),), ONE, form.data_type)
        except BadRow as e:
            batch.bad[row] = e


def _elements(value: Any, form: ValueForm) -> tuple[Content, Dim]:
    """Of a spectrum or an image (an Arrow scalar of lists)."""
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
    if form.is_number and len(unfit(flat)):
        raise BadRow(_UNFIT)
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
