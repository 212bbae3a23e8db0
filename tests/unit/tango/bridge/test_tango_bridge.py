"""Rows of a DataFrame as records of Tango events, and the options that lead there."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.bridge import Ack, EventStyle
from mama_spark.contracts.errors import BadRow, BadTopic, OptionError, SchemaError
from mama_spark.contracts.message import EncodedRows
from mama_spark.memory import MemoryBridge
from mama_spark.options import SinkOptions, SubscribeOptions
from mama_spark.registry import UnsupportedFeature, log_bridge, publisher_bridge, row_codec
from mama_spark.tango.bridge import RecordCodec, TangoBridge
from mama_spark.tango.events.event_codec import Event, decode
from mama_spark.tango.log import records
from mama_spark.tango.types import AttributeValue, DataType, DevState, Dim, Encoded, Format, Quality, ValueKind

from tests.support.tables import each

TANGO = {"url": "tango://lab", "log": "nats://127.0.0.1:4222/TANGO"}
STRUCT = pa.struct([("format", pa.string()), ("data", pa.binary())])
TIME = pa.timestamp("us", "UTC")


def batch(value: pa.Array, **columns: Any) -> pa.RecordBatch:
    n = len(value)
    columns = {"device": ["sys/tg/1"] * n, "attribute": ["Position"] * n, **columns}
    return pa.RecordBatch.from_pydict({**columns, "value": value})


def encode(rows: pa.RecordBatch, prefix: str = "tango") -> EncodedRows:
    codec = RecordCodec("lab", prefix)
    codec.check(rows.schema)
    return codec.encode(rows)


def values_of(encoded: EncodedRows) -> list[AttributeValue]:
    """What the frames of the good records hold, read the general way."""
    recorded = records.decode(encoded.payloads)
    bad = {row for row, _ in encoded.bad}
    found = []
    for row, frames in enumerate(zip(*recorded.frames.columns(), strict=True)):
        if row in bad:
            continue
        assert row not in recorded.bad
        assert recorded.kind[row] == records.RecordKind.PUSH
        event = decode(frames)
        assert isinstance(event, Event)
        assert event.call.ctr == 0
        assert isinstance(event.data, AttributeValue)
        found.append(event.data)
    return found


def one(value: pa.Array, **columns: Any) -> AttributeValue:
    encoded = encode(batch(value, **columns))
    assert not encoded.bad
    (found,) = values_of(encoded)
    return found


def reasons(encoded: EncodedRows) -> dict[int, str]:
    return {row: error.info for row, error in encoded.bad}


# --- values ------------------------------------------------------------------------------------------------

NUMBERS = [
    (pa.array([True]), DataType.BOOLEAN, True),
    (pa.array([-3], pa.int8()), DataType.SHORT, -3),
    (pa.array([-300], pa.int16()), DataType.SHORT, -300),
    (pa.array([-70_000], pa.int32()), DataType.LONG, -70_000),
    (pa.array([2**40]), DataType.LONG64, 2**40),
    (pa.array([0.25], pa.float32()), DataType.FLOAT, 0.25),
    (pa.array([1e300]), DataType.DOUBLE, 1e300),
    (pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0)), DataType.ULONG64, 2**64 - 1),
]


@pytest.mark.spec("TG-17")
@each(("column", "data_type", "value"), NUMBERS)
def test_a_number_is_a_scalar_of_its_type_an_array_a_spectrum_and_an_array_of_arrays_an_image(
    column: pa.Array, data_type: DataType, value: float
) -> None:
    element = column[0].as_py()
    spectrum = pa.array([[element] * 3], pa.list_(column.type))
    image = pa.array([[[element] * 3] * 2], pa.list_(pa.list_(column.type)))
    for values, format_, dims in (
        (column, Format.SCALAR, Dim(1, 0)), (spectrum, Format.SPECTRUM, Dim(3, 0)), (image, Format.IMAGE, Dim(3, 2)),
    ):  # fmt: skip
        found = one(values)
        assert (found.data_type, found.format, found.r_dim, found.name) == (data_type, format_, dims, "Position")
        assert found.read.tolist() == [value] * dims.size  # type: ignore[union-attr]


@each(
    ("column", "kind", "content"),
    [
        (pa.array(["21 °C"]), ValueKind.STRING, ("21 °C",)),
        (pa.array([["a", "", "b"]]), ValueKind.STRING, ("a", "", "b")),
        (pa.array([[["a"], ["b"]]]), ValueKind.STRING, ("a", "b")),
        (pa.array([b"\x00\xff"]), ValueKind.ENCODED, (Encoded("", b"\x00\xff"),)),
        (pa.array([{"format": "JPEG", "data": b"\1"}], STRUCT), ValueKind.ENCODED, (Encoded("JPEG", b"\1"),)),
    ],
)
def test_texts_and_bytes_travel_as_tango_has_them(column: pa.Array, kind: ValueKind, content: object) -> None:
    found = one(column)
    assert (found.kind, found.read) == (kind, content)


@pytest.mark.parametrize(
    "column", [pa.array([[]], pa.list_(pa.float64())), pa.array([[[]]], pa.list_(pa.list_(pa.int32())))]
)
def test_an_empty_spectrum_or_image_has_no_elements(column: pa.Array) -> None:
    found = one(column)
    assert (len(found.content), found.r_dim.size) == (0, 0)  # type: ignore[arg-type]


def test_the_attribute_state_has_a_state() -> None:
    found = one(pa.array(["moving"]), attribute=["State"])
    assert (found.kind, found.content, found.data_type) == (ValueKind.DEVICE_STATE, DevState.MOVING, DataType.STATE)
    wrong = encode(batch(pa.array(["asleep"]), attribute=["State"]))
    assert "'asleep' is no state; there are ON, OFF" in reasons(wrong)[0]
    nothing = one(pa.array([None], pa.string()), attribute=["State"], quality=["INVALID"])
    assert (nothing.kind, nothing.data_type) == (ValueKind.NO_DATA, DataType.STATE)


@pytest.mark.parametrize(
    "column", [pa.array([1, 2, 3]), pa.array([["ON"], ["ON"], None], pa.list_(pa.string()))], ids=str
)
def test_state_and_status_cannot_be_something_else(column: pa.Array) -> None:
    encoded = encode(batch(column, attribute=["STATE", "Status", "other"], quality=["VALID", "VALID", "INVALID"]))
    told = "the attribute is State or Status, whose values must be strings"
    assert reasons(encoded) == {0: told, 1: told}


NAMES, MICROS = st.sampled_from(["a", "bb", "Cc", "a_name_that_is_longer"]), st.integers(0, 2**31 * 10**6 - 1)


@pytest.mark.spec("TG-12", "TG-17")
@given(st.lists(st.tuples(NAMES, st.floats(width=64), st.sampled_from(Quality), MICROS), max_size=30))
def test_each_row_has_its_own_name_value_quality_and_time_however_they_are_mixed(
    rows: list[tuple[str, float, Quality, int]],
) -> None:
    """Also where numbers of many attributes are written together."""
    columns: dict[str, pa.Array] = {
        "device": pa.array(["d/f/m"] * len(rows), pa.string()),
        "attribute": pa.array([r[0] for r in rows], pa.string()),
        "quality": pa.array([r[2].name for r in rows], pa.string()),
        "time": pa.array([r[3] for r in rows], TIME),
    }
    encoded = encode(batch(pa.array([r[1] for r in rows], pa.float64()), **columns))
    assert not encoded.bad
    for (name, value, quality, time), found in zip(rows, values_of(encoded), strict=True):
        assert (found.name, found.quality, found.time) == (name, quality, time * 1000)
        if quality is Quality.INVALID:
            assert found.content is None
        else:
            assert np.array([value]).tobytes() == found.content.tobytes()  # type: ignore[union-attr]


# --- names, quality, time ----------------------------------------------------------------------------------


def test_topics_are_those_of_the_source_in_lower_case_and_names_keep_their_case() -> None:
    encoded = encode(batch(pa.array([1.5]), device=["Sys/TG/1"]), prefix="lab.events")
    assert encoded.topics.to_pylist() == ["lab.events.lab.sys.tg.1.position.change"]
    frames = records.decode(encoded.payloads).frames
    assert frames.topics == [b"tango://lab/sys/tg/1/position#dbase=no.idl5_change"]
    assert values_of(encoded)[0].name == "Position"


@each(
    ("device", "attribute", "text"),
    [
        (None, "a", "the device is null"), ("d/f/m", None, "the attribute is null"),
        ("d/f", "a", "invalid device name, it must be domain/family/member: 'd/f'"),
        ("d//m", "a", "invalid device name"), ("d/f/m", "", "invalid attribute name"),
        ("d/f/m", "a/b", "invalid attribute name"),
        *(("d/f/m", name, "Tango does not allow this attribute name") for name in ("a#b", "a.b", "*", "a" * 300)),
        ("d/f/é", "a", "Tango does not allow this attribute name"),
    ],
)  # fmt: skip
def test_bad_names_are_bad_rows_and_leave_the_others_alone(
    device: str | None, attribute: str | None, text: str
) -> None:
    columns = {"device": [device, "d/f/m"], "attribute": [attribute, "good"]}
    encoded = encode(batch(pa.array([1.0, 2.0]), **columns))
    assert [row for row, _ in encoded.bad] == [0]
    assert text in reasons(encoded)[0]
    assert isinstance(encoded.bad[0][1], BadTopic)
    assert [v.read.tolist() for v in values_of(encoded)] == [[2.0]]  # type: ignore[union-attr]


def test_quality_is_a_word_and_valid_where_none_is_said() -> None:
    words = ["alarm", "ATTR_WARNING", " Changing ", None, "good", ""]
    encoded = encode(batch(pa.array([1.0] * 6), quality=words))
    assert [v.quality.name for v in values_of(encoded)] == ["ALARM", "WARNING", "CHANGING", "VALID"]
    told = "is no quality; give one of VALID, INVALID, ALARM, CHANGING, WARNING"
    assert reasons(encoded) == {4: f"'good' {told}", 5: f"'' {told}"}


def test_a_null_is_an_event_without_data_where_the_quality_says_invalid() -> None:
    encoded = encode(batch(pa.array([None, 2.0, None]), quality=["INVALID", "INVALID", "VALID"]))
    found = [(v.kind, v.content, v.data_type, v.r_dim.size) for v in values_of(encoded)]
    assert found == [(ValueKind.NO_DATA, None, DataType.DOUBLE, 0)] * 2
    assert reasons(encoded) == {2: "the value is null, which is allowed only with the quality INVALID"}


def test_time_is_a_timestamp_or_nanoseconds_and_none_where_none_is_said() -> None:
    """Nothing of now stands in a record: a task that is tried again makes the same ones."""
    assert one(pa.array([1.0]), time=pa.array([1_700_000_000_123_456], TIME)).time == 1_700_000_000_123_456_000
    assert one(pa.array([1.0]), time=pa.array([1_700_000_000_123_456_789])).time == 1_700_000_000_123_456_789
    assert one(pa.array([1.0]), time=pa.array([None], TIME)).time == 0
    rows = batch(pa.array([1.0, math.nan]))
    assert encode(rows).payloads.equals(encode(rows).payloads)
    assert records.decode(encode(rows).payloads).received.tolist() == [0, 0]


@pytest.mark.parametrize("seconds", [-1, 2**31])
def test_a_time_that_tango_cannot_tell_is_a_bad_row(seconds: int) -> None:
    encoded = encode(batch(pa.array([1.0]), time=pa.array([seconds * 10**6], TIME)))
    assert "between 1970 and 2038" in reasons(encoded)[0]


@each(
    ("column", "text"),
    [
        (pa.array([[1.0, None]]), "an element of the value is null"),
        (pa.array([[[1], [2, 3]]]), "one length"),
        (pa.array(["日本"]), "cannot be encoded as Latin-1"),
        (pa.array(["a\0b"]), "NUL"),
        (pa.array([{"format": None, "data": b""}], STRUCT), "format or data of the value is null"),
        (pa.array([Decimal(2**64)], pa.decimal128(20, 0)), "outside the range of DevULong64"),
        (pa.array([[Decimal(0), Decimal(-1)]], pa.list_(pa.decimal128(20, 0))), "outside the range of DevULong64"),
    ],
)
def test_what_tango_cannot_carry_is_a_bad_row(column: pa.Array, text: str) -> None:
    encoded = encode(batch(column))
    assert text in reasons(encoded)[0]
    assert isinstance(encoded.bad[0][1], BadRow)
    assert not values_of(encoded)


@each(
    "kind",
    [pa.date32(), TIME, pa.decimal128(10, 2), pa.map_(pa.string(), pa.string()), pa.list_(STRUCT), pa.null(),
     pa.list_(pa.list_(pa.list_(pa.int32()))), pa.list_(pa.binary()), pa.struct([("x", pa.int32())])],
)  # fmt: skip
def test_types_without_a_counterpart_are_refused_before_any_row(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="column 'value' must be boolean, number"):
        RecordCodec("lab", "tango").check(batch(pa.array([None], kind)).schema)


# --- options and registry ----------------------------------------------------------------------------------


def test_the_registry_puts_the_bridge_before_that_of_the_log() -> None:
    o = SinkOptions.parse({"url": "tango://lab", "log": "memory://tango-registry", "dedup": "true"})
    bridge = publisher_bridge(o)
    assert isinstance(bridge, TangoBridge)
    assert isinstance(bridge._log, MemoryBridge)
    can = bridge.capabilities
    assert (can.ack, can.packs, can.events) == (Ack.STORED, False, EventStyle.TRANSPORT)
    assert isinstance(row_codec(o), RecordCodec)
    assert row_codec(SinkOptions()) is None


def test_the_options_of_the_log_are_those_of_the_connection() -> None:
    log = "nats://a:1,nats://b:2/TANGO"
    inner = SinkOptions.parse({**TANGO, "log": log, "user": "u", "password": "p", "maxInFlight": "7"}).at_log()
    assert (inner.bridge_name, inner.url, inner.stream) == ("nats", ("nats://a:1", "nats://b:2"), "TANGO")
    assert (inner.user, inner.password, inner.max_in_flight) == ("u", "p", 7)


def test_passwords_in_the_url_of_the_log_are_not_shown() -> None:
    o = SinkOptions.parse({**TANGO, "log": "nats://me:secret@a:1/TANGO"})
    assert "secret" not in repr(o)
    with pytest.raises(OptionError) as caught:
        SinkOptions.parse({**TANGO, "log": "nats://me:secret@a:1"})
    assert "secret" not in str(caught.value)


@each(
    ("more", "text"),
    [
        ({"log": None}, "needs option log"),
        ({"log": "nats://127.0.0.1:4222"}, "must name the stream of the log"),
        ({"log": "nats://a/X,nats://b/Y"}, "names different streams"),
        ({"log": "tango://other"}, "must name a log"),
        ({"log": "kafka://x/y"}, "unknown scheme"),
        ({"url": "nats://127.0.0.1:4222"}, "option log is for Tango"),
        ({"url": "tango://a,tango://b"}, "must name one event source"),
        ({"url": "tango://a/b"}, "must name one event source"),
        ({"topic": "x"}, "option topic does not go with Tango"),
        ({"stream": "X"}, "option stream does not go with Tango"),
        ({"pack": "lines"}, "option pack does not go with Tango"),
        ({"ackMode": "none"}, "option ackMode=none does not go with Tango"),
    ],
)
def test_options_that_lead_nowhere_are_refused(more: dict[str, str | None], text: str) -> None:
    wanted = {name: value for name, value in {**TANGO, **more}.items() if value is not None}
    with pytest.raises(OptionError, match=text):
        SinkOptions.parse(wanted)


def test_a_source_itself_keeps_no_log() -> None:
    with pytest.raises(UnsupportedFeature, match="keeps no log"):
        log_bridge(SubscribeOptions.parse({"url": "tango://lab", "topics": ">"}), 1.0)
