"""Attribute values: all types, byte orders, IDL versions and formats round-trip (TG-17)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from mama_spark.tango.events import event_codec
from mama_spark.tango.events.event_codec import MAGIC, CallInfo, Event, decode, encode
from mama_spark.tango.giop.cdr import CdrError, CdrReader, CdrWriter
from mama_spark.tango.idl import structs
from mama_spark.tango.idl.values import read_any, read_union, read_value, write_union, write_value
from mama_spark.tango.topics import parse
from mama_spark.tango.types import (
    DTYPES,
    AttributeValue,
    Content,
    DevError,
    DevState,
    Dim,
    Encoded,
    EventType,
    Format,
    InterfaceChange,
    PipeBlob,
    PipeData,
    PipeElement,
    Quality,
    Severity,
    ValueKind,
    same_content,
)

from tests.support.tables import each
from tests.support.tiers import examples

TEXT = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=12)
LONG = st.integers(-(2**31), 2**31 - 1)
TIME = st.integers(-(2**31) * 10**9, 2**31 * 10**9 - 1)
ERRORS = st.lists(st.builds(DevError, TEXT, st.sampled_from(Severity), TEXT, TEXT), max_size=3).map(tuple)
PLACES = {Format.SCALAR: Dim(1, 0), Format.SPECTRUM: Dim(4, 0), Format.IMAGE: Dim(3, 2)}


def contents(kind: ValueKind, size: int) -> st.SearchStrategy[Content]:
    if kind in DTYPES:
        return npst.arrays(DTYPES[kind], size)
    if kind is ValueKind.NO_DATA:
        return st.none()
    if kind is ValueKind.DEVICE_STATE:
        return st.sampled_from(DevState)
    elements: dict[ValueKind, st.SearchStrategy[Any]] = {
        ValueKind.STRING: TEXT,
        ValueKind.STATE: st.sampled_from(DevState),
        ValueKind.ENCODED: st.builds(Encoded, TEXT, st.binary(max_size=9)),
    }
    return st.lists(elements[kind], min_size=size, max_size=size).map(tuple)


@st.composite
def values(draw: st.DrawFn, idl: int = 5) -> AttributeValue:
    kinds = [k for k in ValueKind if idl > 3 or k is not ValueKind.ENCODED]
    kind = draw(st.sampled_from(kinds))
    format_ = draw(st.sampled_from([*PLACES]))
    r_dim = PLACES[format_] if draw(st.booleans()) else Dim(0, 0)
    w_dim = draw(st.sampled_from([Dim(0, 0), PLACES[format_], Dim(2, 0)]))
    return AttributeValue(
        draw(TEXT), kind, draw(contents(kind, r_dim.size + w_dim.size)), draw(TIME), draw(st.sampled_from(Quality)),
        Format.UNKNOWN if idl == 3 else format_, draw(LONG) if idl == 5 else None, r_dim, w_dim, draw(ERRORS),
    )  # fmt: skip


TOPICS = {5: "tango://h:1/a/b/c/d.idl5_change", 4: "tango://h:1/a/b/c/d.change", 3: "tango://h:1/a/b/c/d.change"}


@examples(400)
@pytest.mark.parametrize("idl", [5, 4, 3])
@given(st.data(), st.booleans())
def test_every_value_comes_back(idl: int, data: st.DataObject, little: bool) -> None:
    value = data.draw(values(idl))
    writer = CdrWriter(little)
    write_value(writer, value, idl)
    octets = writer.getvalue()
    reader = CdrReader(octets, little)
    assert read_value(reader, idl) == value
    reader.finish()
    for size in range(len(octets)):
        with pytest.raises(CdrError):
            read_value(CdrReader(octets[:size], little), idl)


@each("little", [True, False])
@each("kind", [k for k in ValueKind if k is not ValueKind.ENCODED])
def test_on_topics_without_a_prefix_the_data_show_idl_3_or_4(kind: ValueKind, little: bool) -> None:
    """Servers publish both forms to one topic: a value in an ``any`` follows a value in a union."""
    others: dict[ValueKind, Content] = {
        ValueKind.STRING: ("a", "bcd"), ValueKind.STATE: (DevState.ON, DevState.UNKNOWN),
        ValueKind.DEVICE_STATE: DevState.FAULT,
    }  # fmt: skip
    content = np.arange(2).astype(DTYPES[kind]) if kind in DTYPES else others.get(kind)
    dims = Dim(0, 0) if kind is ValueKind.NO_DATA else Dim(2, 0)
    value = AttributeValue("spec", kind, content, 1_700_000_000_123_456_789, format=Format.UNKNOWN, r_dim=dims)
    writer = CdrWriter(little, MAGIC, len(MAGIC))
    write_value(writer, value, 3)
    assert event_codec.read_data(parse(TOPICS[3]), writer.getvalue(), little) == value
    quality = parse("tango://h:1/a/b/c/d.quality")
    assert event_codec.read_data(quality, writer.getvalue(), little) == value


def type_code(*parts: int | str | list[Any]) -> bytes:
    """A TypeCode written by hand: numbers, strings, and lists that are encapsulations."""

    def put(writer: CdrWriter, part: Any) -> None:
        if isinstance(part, list):
            inner = CdrWriter.inner(writer.little)
            for one in part:
                put(inner, one)
            writer.encapsulation(inner)
        else:
            (writer.string if isinstance(part, str) else writer.ulong)(part)

    writer = CdrWriter(True)
    for part in parts:
        put(writer, part)
    return writer.getvalue()


def nested(depth: int) -> list[Any]:
    return ["", "", 21, nested(depth - 1)] if depth else ["", "", 19, [7, 0]]


def test_aliases_of_elements_and_of_sequences_are_followed() -> None:
    for code in (
        type_code(19, [7, 0]),
        type_code(21, ["IDL:Tango/DevVarDoubleArray:1.0", "DevVarDoubleArray", 19, [7, 0]]),
        type_code(21, ["", "", 19, [21, ["", "", 7], 0]]),
        type_code(21, nested(6)),
    ):
        writer = CdrWriter(True, code)
        writer.array([1.5, 2.5], np.float64)
        kind, content = read_any(CdrReader(writer.getvalue(), True))
        assert kind is ValueKind.DOUBLE
        assert same_content(content, np.array([1.5, 2.5]))


@each(
    "code",
    [
        type_code(11), type_code(19, [15, 0]), type_code(21, ["", "", 2]), type_code(21, nested(40)),
        type_code(21, ["", "", 19, [21, nested(40), 0]]), type_code(19, []), type_code(21, ["", ""]),
    ],
)  # fmt: skip
def test_types_that_no_attribute_has_are_refused(code: bytes) -> None:
    with pytest.raises(CdrError):
        read_any(CdrReader(code + bytes(64), True))


def test_the_dimensions_separate_read_and_set_value() -> None:
    """Lengths by r_dim and w_dim; of an image, rows one after the other."""
    content = np.arange(8.0)
    image = AttributeValue("i", ValueKind.DOUBLE, content, 0, r_dim=Dim(3, 2), w_dim=Dim(2, 1))
    assert same_content(image.read, content[:6])
    assert same_content(image.written, content[6:])
    scalar = AttributeValue("s", ValueKind.STRING, ("read",), 0)
    assert (scalar.read, scalar.written) == (("read",), None)
    missing = AttributeValue("w", ValueKind.LONG, np.array([1], np.int32), 0, w_dim=Dim(1, 0))
    assert same_content(missing.written, np.array([], np.int32))
    state = AttributeValue("State", ValueKind.DEVICE_STATE, DevState.ON, 0, w_dim=Dim(1, 0))
    assert (state.read, state.written) == (DevState.ON, None)
    nothing = AttributeValue("n", ValueKind.NO_DATA, None, 0, Quality.INVALID, w_dim=Dim(1, 0))
    assert (nothing.read, nothing.written) == (None, None)


def test_numbers_are_read_only_views_of_the_data() -> None:
    value = AttributeValue("d", ValueKind.DOUBLE, np.arange(1000.0), 0, Quality.VALID, Format.SPECTRUM, 5, Dim(1000, 0))
    topic = parse(TOPICS[5])
    frame = event_codec.write_data(topic, value, little=True)
    found = event_codec.read_data(topic, frame, little=True)
    assert isinstance(found, AttributeValue)
    assert isinstance(found.content, np.ndarray)
    assert np.shares_memory(found.content, np.frombuffer(frame, np.uint8))
    assert not found.content.flags.writeable
    swapped = event_codec.read_data(topic, event_codec.write_data(topic, value, little=False), little=False)
    assert swapped == value


def test_equality_is_by_octets() -> None:
    nan = AttributeValue("d", ValueKind.DOUBLE, np.array([np.nan]), 0)
    assert nan == AttributeValue("d", ValueKind.DOUBLE, np.array([np.nan]), 0)
    assert nan != AttributeValue("d", ValueKind.DOUBLE, np.array([0.0]), 0)
    assert AttributeValue("d", ValueKind.BOOL, np.array([False]), 0) != AttributeValue("d", ValueKind.BOOL, (), 0)
    assert nan != "d"
    assert PipeElement("a", ValueKind.NO_DATA, None) != "a"
    with pytest.raises(TypeError):
        hash(nan)


@each(
    ("kind", "content"),
    [
        (ValueKind.NO_DATA, (1,)), (ValueKind.DEVICE_STATE, None), (ValueKind.DEVICE_STATE, (DevState.ON,)),
        (ValueKind.STATE, (0,)), (ValueKind.STATE, None), (ValueKind.STRING, (b"x",)), (ValueKind.STRING, "x"),
        (ValueKind.STRING, ("\u20ac",)), (ValueKind.STRING, ("a\0b",)), (ValueKind.ENCODED, ("x",)),
        (ValueKind.DOUBLE, None), (ValueKind.DOUBLE, ("x",)), (ValueKind.UCHAR, np.array([256])),
        (ValueKind.LONG, np.array([1.5])), (ValueKind.ULONG, np.array([-1])), (ValueKind.DOUBLE, DevState.ON),
    ],
)  # fmt: skip
def test_content_of_another_kind_is_not_written(kind: ValueKind, content: Any) -> None:
    with pytest.raises(CdrError):
        write_union(CdrWriter(True), kind, content)


@pytest.mark.parametrize("little", [True, False])
def test_states_beyond_the_last_are_refused(little: bool) -> None:
    writer = CdrWriter(little)
    writer.ulong(ValueKind.STATE)
    writer.array([0, 14], np.uint32)
    with pytest.raises(CdrError, match="DevState"):
        read_union(CdrReader(writer.getvalue(), little))


def test_a_time_beyond_2038_is_refused() -> None:
    with pytest.raises(CdrError):
        write_value(CdrWriter(True), AttributeValue("d", ValueKind.DOUBLE, np.array([1.0]), 2**31 * 10**9, data_type=5))


# --- the other data of events ----------------------------------------------------------------------------------

STRINGS = st.lists(TEXT, max_size=2).map(tuple)


def flat(struct: structs.Struct) -> st.SearchStrategy[Any]:
    """Values of a structure."""
    kinds: dict[Any, st.SearchStrategy[Any]] = {str: TEXT, tuple[str, ...]: STRINGS, int: LONG, bool: st.booleans()}

    def field(kind: Any) -> st.SearchStrategy[Any]:
        if kind in kinds:
            return kinds[kind]
        return st.sampled_from(kind) if issubclass(kind, IntEnum) else flat(structs.Struct(kind))

    return st.builds(struct.cls, **{name: field(kind) for name, kind in struct.fields.items()})


ELEMENT: st.SearchStrategy[PipeElement] = st.deferred(
    lambda: st.sampled_from(ValueKind).flatmap(
        lambda kind: st.builds(
            PipeElement, TEXT, st.just(kind), contents(kind, 2), st.lists(ELEMENT, max_size=2).map(tuple), TEXT
        )
    )
)
DATA = st.one_of(
    flat(structs.CONFIG_5).map(lambda d: (EventType.ATTR_CONF, 5, d)),
    flat(structs.CONFIG_3).map(lambda d: (EventType.ATTR_CONF, None, d)),
    flat(structs.DATA_READY).map(lambda d: (EventType.DATA_READY, None, d)),
    st.builds(
        InterfaceChange, st.booleans(), st.lists(flat(structs.COMMAND_INFO), max_size=2).map(tuple),
        st.lists(flat(structs.CONFIG_5), max_size=2).map(tuple),
    ).map(lambda d: (EventType.INTERFACE_CHANGE, None, d)),
    st.builds(PipeData, TEXT, TIME, st.builds(PipeBlob, TEXT, st.lists(ELEMENT, max_size=3).map(tuple))).map(
        lambda d: (EventType.PIPE, None, d)
    ),
)  # fmt: skip


@pytest.mark.spec("TG-13-TG-16")
@examples(300)
@given(DATA, st.booleans())
def test_configurations_interfaces_pipes_and_data_ready_come_back(told: tuple[Any, Any, Any], little: bool) -> None:
    event_type, idl, data = told
    attribute = "" if event_type is EventType.INTERFACE_CHANGE else "/x"
    topic = parse(f"tango://h:1/a/b/c{attribute}.{'idl5_' if idl else ''}{event_type.wire_name}")
    event = Event(topic, CallInfo(3), data, (), little)
    frames = encode(event)
    assert decode(frames) == event


@pytest.mark.spec("TG-18")
@examples(200)
@given(ERRORS, st.booleans(), st.sampled_from(["d.idl5_change", "d.change", "d.pipe", "d.data_ready", "d.alarm"]))
def test_errors_come_back_on_every_topic(errors: tuple[DevError, ...], little: bool, name: str) -> None:
    """The call info has the flag is_except, and the fourth frame contains the error stack."""
    event = Event(parse(f"tango://h:1/a/b/c/{name}"), CallInfo(3, is_except=True), None, errors, little)
    assert decode(encode(event)) == event
