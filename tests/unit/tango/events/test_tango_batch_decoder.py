"""Batch decoder and scalar encoder: their results equal those of the general codec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.tango import types
from mama_spark.tango.events import batch_decoder, event_codec
from mama_spark.tango.events.batch_decoder import BatchDecoder, EventColumns
from mama_spark.tango.events.event_codec import BadEvent, CallInfo, Event, Heartbeat, decode, encode, write_data
from mama_spark.tango.events.frame_layout import ScalarEncoder, layout_of
from mama_spark.tango.giop.cdr import CdrError
from mama_spark.tango.topics import parse
from mama_spark.tango.types import DTYPES, KIND_OF, AttributeValue, DataType, Dim, Format, Quality, ValueKind

from tests.support.tiers import examples
from tests.support.vectors import vectors

VECTORS = vectors("tango")
EVENTS = [[bytes.fromhex(h) for h in v["hex"]] for v in VECTORS if v["kind"] in ("event", "bad") and len(v["hex"]) == 4]
NUMBERS = [data_type for data_type, kind in KIND_OF.items() if kind in DTYPES]
NEW, OLD = parse("tango://h:1/a/b/c/d.idl5_change"), parse("tango://h:1/a/b/c/d.change")
Frames = list[bytes]


def general(frames: Frames) -> Event | Heartbeat | str:
    try:
        return decode(frames)
    except BadEvent as error:
        return str(error)


def batch(rows: list[Frames], decoder: BatchDecoder | None = None) -> EventColumns:
    columns = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    return (decoder or BatchDecoder()).decode(*columns)


def check(rows: list[Frames], columns: EventColumns) -> None:
    """Each row is in one column group, and its value equals that of the general decoder."""
    assert len(columns) == len(rows)
    places = [row for part in columns.scalars for row in part.rows.tolist()] + [*columns.others, *columns.bad]
    assert sorted(places) == list(range(len(rows)))
    want = [general(frames) for frames in rows]
    for row, error in columns.bad.items():
        assert want[row] == str(error)
        assert (columns.ctr[row], columns.time[row], columns.quality[row], columns.data_type[row]) == (0, 0, -1, -1)
    for row, event in columns.others.items():
        assert want[row] == event
        _check_common(columns, row, event)
    for part in columns.scalars:
        for index, row in enumerate(part.rows.tolist()):
            event = want[row]
            assert isinstance(event, Event)
            value = event.data
            assert isinstance(value, AttributeValue)
            _check_common(columns, row, event)
            assert (value.kind, value.name.encode("latin-1")) == (part.kind, part.names[index])
            assert value.format is Format.SCALAR
            assert types.same_content(value.read, part.read[index : index + 1])
            assert types.same_content(value.written, None if part.written is None else part.written[index : index + 1])


def _check_common(columns: EventColumns, row: int, event: Event | Heartbeat) -> None:
    value = event.data if isinstance(event, Event) else None
    assert columns.ctr[row] == event.call.ctr
    assert columns.time[row] == (value.time if isinstance(value, AttributeValue | types.PipeData) else 0)
    told = (value.quality, value.data_type) if isinstance(value, AttributeValue) else (-1, None)
    assert columns.quality[row] == told[0]
    assert columns.data_type[row] == (-1 if told[1] is None else told[1])


@st.composite
def scalar_events(draw: st.DrawFn) -> Frames:
    """A valid event of one number; few topics and names, so that events share layouts."""
    topic = draw(st.sampled_from([NEW, OLD, parse("tango://h:1/a/b/c/d.alarm"), parse("tango://h:1/a/b/c/d.quality")]))
    data_type = draw(st.sampled_from(NUMBERS))
    kind = KIND_OF[data_type]
    settable = draw(st.booleans())
    octets = draw(st.binary(min_size=16, max_size=16))
    content = np.frombuffer(octets, DTYPES[kind] if kind is not ValueKind.BOOL else np.uint8)[: 1 + settable]
    if kind is ValueKind.BOOL:
        content = content > 127
    value = AttributeValue(
        draw(st.sampled_from(["d", "dd", "ddd", "dddd", "\xe9"])), kind, content,
        draw(st.integers(-(10**18), 2 * 10**18)), draw(st.sampled_from(Quality)), Format.SCALAR,
        draw(st.sampled_from([int(data_type), 30])), Dim(1, 0), Dim(1, 0) if settable else Dim(0, 0),
    )  # fmt: skip
    return encode(Event(topic, CallInfo(draw(st.integers(0, 2**32 - 1))), value, (), draw(st.booleans())))


@st.composite
def spoiled(draw: st.DrawFn) -> Frames:
    """An event with some changed bytes, or with a frame of another event."""
    frames = list(draw(scalar_events() | st.sampled_from(EVENTS)))
    index = draw(st.integers(1, 3))
    if draw(st.booleans()):
        frames[index] = draw(st.sampled_from(EVENTS))[index]
        return frames
    octets = bytearray(frames[index])
    for _ in range(draw(st.integers(1, 3))):
        if octets:
            octets[draw(st.integers(0, len(octets) - 1))] = draw(st.integers(0, 255))
    frames[index] = bytes(octets)
    return frames


@examples(300)
@given(st.lists(scalar_events() | st.sampled_from(EVENTS) | spoiled(), max_size=12), st.integers(1, 3))
def test_columns_equal_the_general_decoder(rows: list[Frames], times: int) -> None:
    """Also with layouts that were cached from the same rows."""
    decoder = BatchDecoder()
    for _ in range(times):
        check(rows, batch(rows, decoder))


def test_recorded_events_in_one_batch() -> None:
    columns = batch(EVENTS)
    check(EVENTS, columns)
    assert sum(len(part.rows) for part in columns.scalars) >= 15
    assert columns.bad


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["name"] in ("change_double_scalar", "change_read_write")])
def test_every_octet_of_a_frame_is_compared_or_read_or_padding(vector: dict[str, Any]) -> None:
    """Frames with one changed byte each, in one batch after the valid frame of the layout."""
    good = [bytes.fromhex(h) for h in vector["hex"]]
    rows = [good]
    for index in (1, 2, 3):
        for at in range(len(good[index])):
            for value in (0, 1, 2, 0x41, 0x80, 0xFF):
                octets = bytearray(good[index])
                octets[at] = value
                rows.append([*good[:index], bytes(octets), *good[index + 1 :]])
    columns = batch(rows)
    check(rows, columns)
    assert len(columns.bad) > 100


def test_a_topic_that_changes_its_type_gets_a_new_layout() -> None:
    first = ScalarEncoder(NEW, "d", DataType.DOUBLE).frames(1, 5, Quality.VALID, 1.5)
    second = ScalarEncoder(NEW, "d", DataType.LONG64).frames(2, 6, Quality.VALID, 7)
    assert len(first[3]) == len(second[3])
    decoder = BatchDecoder()
    for rows in ([first], [second, second], [second, first, second]):
        columns = batch(rows, decoder)
        check(rows, columns)
        assert not columns.others


def test_layouts_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_decoder, "_REMEMBERED", 10)
    decoder = BatchDecoder()
    for n in range(50):
        topic = parse(f"tango://h:1/a/b/c/d{n}.idl5_change")
        rows = [ScalarEncoder(topic, f"d{n}", DataType.DOUBLE).frames(1, 5, Quality.VALID, 1.5)]
        check(rows, batch(rows, decoder))
    assert len(decoder._known) <= 11


# --- writing ---------------------------------------------------------------------------------------------------


@examples(300)
@given(scalar_events())
def test_a_scalar_is_written_as_the_general_way_writes_it(frames: Frames) -> None:
    event = decode(frames)
    assert isinstance(event, Event)
    value = event.data
    assert isinstance(value, AttributeValue)
    shape = layout_of(event.topic, value, event.little)
    data_type = next(t for t in NUMBERS if KIND_OF[t] is value.kind)
    assert isinstance(value.content, np.ndarray)
    encoder = ScalarEncoder(event.topic, value.name, data_type, len(value.content) == 2, event.little)
    assert encoder.layout == shape
    want = frames
    if value.data_type is not None:  # a number that is no type stays one, but nobody writes it
        known = AttributeValue(value.name, value.kind, value.content, value.time, value.quality, value.format,
                               data_type, value.r_dim, value.w_dim)  # fmt: skip
        want = encode(Event(event.topic, event.call, known, (), event.little))
    if value.kind is not ValueKind.FLOAT or not np.isnan(value.content).any():  # Python floats lose a NaN's payload
        assert encoder.frames(event.call.ctr, value.time, value.quality, *value.content.tolist()) == want
    if not encoder.layout.settable:
        name = np.frombuffer(value.name.encode("latin-1"), np.uint8)
        columns = (np.full(3, value.time), np.full(3, value.quality), value.content.repeat(3))
        assert encoder.layout.encode(name, data_type, *columns) == [want[3]] * 3


def test_encoders_refuse_what_does_not_fit() -> None:
    byte = ScalarEncoder(NEW, "d", DataType.UCHAR)
    for wrong in ((256,), (1.5,), ("1",), (1, 2), (), (None,)):
        with pytest.raises(CdrError):
            byte.data(0, Quality.VALID, *wrong)
    flag = ScalarEncoder(NEW, "d", DataType.BOOLEAN)
    for no_flag in (2, "True", 0.5):
        with pytest.raises(CdrError):
            flag.data(0, Quality.VALID, no_flag)  # type: ignore[arg-type]
    assert flag.data(0, Quality.VALID, True) == flag.data(0, Quality.VALID, np.bool_(True))  # type: ignore[arg-type]
    with pytest.raises(CdrError):
        byte.data(2**31 * 10**9, Quality.VALID, 1)
    with pytest.raises(CdrError, match="no number"):
        ScalarEncoder(NEW, "d", DataType.STRING)
    with pytest.raises(CdrError):
        ScalarEncoder(parse("tango://h:1/a/b/c/d.pipe"), "d", DataType.DOUBLE)


def test_frames_of_many_values_have_times_of_32_bits() -> None:
    def encoded(*seconds: int) -> int:
        rows = (np.array(seconds, np.int64) * 10**9, np.zeros(len(seconds), np.int8), np.ones(len(seconds)))
        layout = ScalarEncoder(NEW, "d", DataType.DOUBLE).layout
        return len(layout.encode(np.frombuffer(b"d", np.uint8), DataType.DOUBLE, *rows))

    assert [encoded(), encoded(-(2**31)), encoded(0, 2**31 - 1)] == [0, 1, 2]
    for late in (2**31, -(2**31) - 1):
        with pytest.raises(CdrError):
            encoded(late)


def test_a_float_too_large_for_its_type_is_refused_and_an_infinite_one_is_not() -> None:
    encoder = ScalarEncoder(NEW, "d", DataType.FLOAT)
    for too_large in (1e300, -1e300, 3.5e38):
        with pytest.raises(CdrError):
            encoder.data(0, Quality.VALID, too_large)
    value = AttributeValue("d", ValueKind.FLOAT, np.array([np.inf], np.float32), 0, data_type=DataType.FLOAT)
    assert encoder.data(0, Quality.VALID, float("inf")) == write_data(NEW, value)


def test_a_call_info_with_a_method_of_the_usual_size_is_read_the_general_way() -> None:
    """``method`` of three bytes makes 21 bytes, too."""
    good = ScalarEncoder(NEW, "d", DataType.DOUBLE).frames(1, 5, Quality.VALID, 1.5)
    event = decode(good)
    assert isinstance(event, Event)
    odd = encode(Event(event.topic, CallInfo(9, method="abc"), event.data))
    assert len(odd[2]) == len(event_codec.usual_call(1))
    for rows in ([odd], [good, odd, good], [odd, good]):
        check(rows, batch(rows))
