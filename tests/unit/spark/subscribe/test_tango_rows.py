"""Records of a log as Spark shows them: the struct ``tango`` of ``mamasub``, and rows of ``mamadiscovery``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind
from mama_spark.mama.discovery.discovery_rows import INFO_LENGTH, DiscoveryRow, DiscoveryRowReader
from mama_spark.options import DiscoveryOptions
from mama_spark.tango.bridge.discovery import source_key
from mama_spark.tango.events.event_codec import CallInfo, Event, encode, usual_call, write_except
from mama_spark.tango.log.device_states import RecordedDevice
from mama_spark.tango.log.records import GapCause, RecordKind, device_topic, record_topic
from mama_spark.tango.rows import TYPE, VALUES
from mama_spark.tango.rows.tango_rows import CorruptRecord, TangoColumns
from mama_spark.tango.topics import event_topic
from mama_spark.tango.types import (
    KIND_OF,
    NO_DIM,
    ONE,
    AttributeValue,
    Content,
    DataReady,
    DataType,
    DevError,
    DevState,
    Dim,
    Encoded,
    EventType,
    Format,
    PipeBlob,
    PipeData,
    Quality,
    Severity,
    ValueKind,
)

from tests.support.tables import each
from tests.support.tango.records import encode_one

TOPIC = event_topic("db:1", "a/b/c", "attr", EventType.CHANGE, dbase=True)
ERRORS = (DevError("Broken", Severity.ERR, "it broke", "here"),)
AT = 1_700_000_000_123_456_789
D = DataType


def row(payload: bytes, topic: str = "tango.db:1.a.b.c.attr.change", strict: bool = False) -> dict[str, Any]:
    column = TangoColumns(TYPE, strict=strict).columns(pa.array([payload]), pa.array([topic]), np.array([7]))["tango"]
    found: dict[str, Any] = column[0].as_py()
    return found


def shown(value: AttributeValue, kind: RecordKind = RecordKind.EVENT) -> dict[str, Any]:
    return row(encode_one(kind, 5, encode(Event(TOPIC, CallInfo(3), value)), ctr=3))


def filled(found: dict[str, Any]) -> dict[str, Any]:
    """The value columns that are not null."""
    return {name: v for name, v in found.items() if name.startswith(("value_", "set_")) and v is not None}


def array(data_type: DataType, *numbers: float) -> Any:
    types = {D.BOOLEAN: "?", D.SHORT: "<i2", D.LONG: "<i4", D.LONG64: "<i8", D.FLOAT: "<f4", D.DOUBLE: "<f8",
             D.UCHAR: "u1", D.USHORT: "<u2", D.ULONG: "<u4", D.ULONG64: "<u8", D.ENUM: "<i2"}  # fmt: skip
    return np.array(numbers, types[data_type])


#: type -> what was read and set, column, what stands there
BOTH: list[tuple[DataType, Content, str, list[Any], list[Any]]] = [
    (D.BOOLEAN, array(D.BOOLEAN, True, False), "bool", [True], [False]),
    *((t, array(t, -3, 4), "long", [-3], [4]) for t in (D.SHORT, D.LONG, D.LONG64)),
    *((t, array(t, 3, 4), "long", [3], [4]) for t in (D.UCHAR, D.USHORT, D.ULONG, D.ENUM)),
    (D.ULONG64, array(D.ULONG64, 2**64 - 1, 1), "ulong", [Decimal(2**64 - 1)], [Decimal(1)]),
    *((t, array(t, 1.5, -2.5), "double", [1.5], [-2.5]) for t in (D.FLOAT, D.DOUBLE)),
    (D.STRING, ("é", "b"), "string", ["é"], ["b"]),
    (D.ENCODED, (Encoded("f", b"1"), Encoded("g", b"2")), "encoded", [{"format": "f", "data": b"1"}],
     [{"format": "g", "data": b"2"}]),
]  # fmt: skip


@pytest.mark.spec("TG-12", "TG-17")
@each(("data_type", "content", "column", "read", "written"), BOTH)
def test_what_was_read_and_what_was_set_stand_in_the_columns_of_their_type(
    data_type: DataType, content: Content, column: str, read: list[Any], written: list[Any]
) -> None:
    assert {column for _, _, column, _, _ in BOTH} == set(VALUES), "no column is left out"
    value = AttributeValue("attr", KIND_OF[data_type], content, AT, data_type=data_type, w_dim=ONE)
    found = shown(value)
    assert filled(found) == {f"value_{column}": read, f"set_{column}": written}
    assert (found["data_type"], found["format"], found["dim_x"], found["w_dim_x"]) == (data_type.name, "SCALAR", 1, 1)
    assert (found["data_time"], found["ctr"], found["received"], found["quality"]) == (AT, 3, 5, "VALID")
    assert (found["kind"], found["origin"], found["errors"], found["reason"]) == ("event", "event", None, None)


@each(
    ("value", "wanted"),
    [
        (AttributeValue("attr", ValueKind.DEVICE_STATE, DevState.MOVING, AT, data_type=D.STATE),
         {"value_string": ["MOVING"]}),
        (AttributeValue("attr", ValueKind.STATE, (DevState.ON, DevState.FAULT), AT, format=Format.SPECTRUM,
                        data_type=D.STATE, r_dim=Dim(2, 0)), {"value_string": ["ON", "FAULT"]}),
        (AttributeValue("attr", ValueKind.DOUBLE, array(D.DOUBLE), AT, format=Format.SPECTRUM, data_type=D.DOUBLE,
                        r_dim=NO_DIM), {"value_double": []}),
        (AttributeValue("attr", ValueKind.LONG, array(D.LONG, 1, 2, 3, 4, 5, 6, 7), AT, format=Format.IMAGE,
                        data_type=D.LONG, r_dim=Dim(3, 2), w_dim=ONE),
         {"value_long": [1, 2, 3, 4, 5, 6], "set_long": [7]}),
        (AttributeValue("attr", ValueKind.NO_DATA, None, AT, Quality.INVALID, data_type=D.DOUBLE, r_dim=NO_DIM), {}),
    ],
)  # fmt: skip
def test_values_of_other_shapes(value: AttributeValue, wanted: dict[str, Any]) -> None:
    found = shown(value)
    assert filled(found) == wanted
    assert (found["dim_x"], found["dim_y"]) == tuple(value.r_dim)
    assert (found["quality"], found["format"]) == (value.quality.name, value.format.name)


def test_the_type_comes_from_the_value_where_an_older_server_does_not_send_it() -> None:
    topic = dataclasses.replace(TOPIC, idl=None)
    for data_type in (D.DOUBLE, D.BOOLEAN):
        value = AttributeValue("attr", KIND_OF[data_type], array(data_type, 1), AT)
        frames = encode(Event(topic, CallInfo(1), value))
        assert row(encode_one(RecordKind.EVENT, 5, frames))["data_type"] == data_type.name


@each(
    ("kind", "origin"),
    [(RecordKind.INITIAL, "initial"), (RecordKind.RESUBSCRIBED, "resubscription"), (RecordKind.PUSH, "push")],
)
def test_the_origin_of_a_value_is_in_its_row(kind: RecordKind, origin: str) -> None:
    found = shown(AttributeValue("attr", ValueKind.DOUBLE, array(D.DOUBLE, 1.0), AT, data_type=D.DOUBLE), kind)
    assert (found["kind"], found["origin"]) == ("event", origin)


@pytest.mark.spec("TG-18", "TG-46")
def test_errors_gaps_and_restarts_have_their_columns() -> None:
    found = row(encode_one(RecordKind.EVENT, 5, encode(Event(TOPIC, CallInfo(4, True), None, ERRORS)), ctr=4))
    told = [{"reason": "Broken", "severity": "ERR", "desc": "it broke", "origin": "here"}]
    assert (found["kind"], found["errors"], found["quality"]) == ("event", told, None)
    frames = (TOPIC.encode(), b"\1", usual_call(0))
    numbers = {"first": 4, "last": 8, "count": 5}
    found = row(encode_one(RecordKind.GAP, 5, frames, **numbers, cause=GapCause.REFUSED))
    wanted = {"kind": "gap", "gap_from": 4, "gap_to": 8, "gap_count": 5, "cause": "refused", "event": "change"}
    assert {name: found[name] for name in wanted} == wanted
    found = row(encode_one(RecordKind.RESTART, 5, frames, first=9, last=1, count=-1, cause=GapCause.WAY))
    wanted = {"kind": "restart", "gap_from": 9, "gap_to": 1, "gap_count": None, "cause": "way", "device": "a/b/c"}
    assert {name: found[name] for name in wanted} == wanted
    why = (device_topic("db:1", "a/b/c", True).encode(), b"\1", usual_call(0, True), write_except(ERRORS))
    found = row(encode_one(RecordKind.OFFLINE, 5, why))
    assert (found["kind"], found["errors"], found["event"]) == ("offline", told, "heartbeat")


@pytest.mark.spec("TG-14", "TG-15")
def test_what_has_no_columns_of_its_own_is_json() -> None:
    ready = event_topic("db:1", "a/b/c", "attr", EventType.DATA_READY, dbase=True)
    found = row(encode_one(RecordKind.EVENT, 5, encode(Event(ready, CallInfo(0), DataReady("attr", 5, -7)))))
    assert json.loads(found["detail"]) == {"name": "attr", "data_type": 5, "ctr": -7}
    pipe = event_topic("db:1", "a/b/c", "p", EventType.PIPE, dbase=True)
    blob = PipeData("p", AT, PipeBlob("blob", ()))
    found = row(encode_one(RecordKind.EVENT, 5, encode(Event(pipe, CallInfo(1), blob))))
    assert json.loads(found["detail"])["name"] == "p"
    assert filled(found) == {}


def test_what_is_no_record_says_why_or_raises() -> None:
    found = row(b"rubbish", "tango.db:1.a.b.c.attr.change")
    assert (found["kind"], found["device"], found["attribute"]) == ("corrupt", "a/b/c", "attr")  # by the log's topic
    assert "shorter than a head" in found["reason"]
    with pytest.raises(CorruptRecord, match="record 7"):
        row(b"rubbish", strict=True)


# --- mamadiscovery -----------------------------------------------------------------------------------------


def discovered(
    payload: bytes, kind: DiscoveryEventKind = DiscoveryEventKind.EVENT, info: str | None = None
) -> DiscoveryRow:
    reader = DiscoveryRowReader.of(DiscoveryOptions.parse({"url": "nats://h/TANGO", "tango": "true"}))
    key = source_key(RecordedDevice("db:1", "a/b/c", True))
    return reader.row(DiscoveryEvent(kind, 9, "TANGO", 7, key, payload, record_topic(TOPIC), info))


@pytest.mark.spec("TG-36", "TG-41")
@each(
    ("kind", "event", "state", "data_state"),
    [
        (RecordKind.ONLINE, "online", "ONLINE", "OK"),
        (RecordKind.SUSPECT, "suspect", "ONLINE", "SUSPECT"),
        (RecordKind.OFFLINE, "offline", "OFFLINE", "SUSPECT"),
    ],
)
def test_the_life_of_a_device_is_that_of_a_source(kind: RecordKind, event: str, state: str, data_state: str) -> None:
    data = write_except(ERRORS) if kind is not RecordKind.ONLINE else b""
    frames: Sequence[bytes] = (device_topic("db:1", "a/b/c", True).encode(), b"\1", usual_call(0, bool(data)), data)
    found = discovered(encode_one(kind, 5_000, frames), DiscoveryEventKind.RECORD)
    assert (found.kind, found.event) == ("source", event)
    assert (found.source_state, found.source_data_state) == (state, data_state)
    assert (found.source_name, found.event_time, found.sequence) == ("tango://db:1/a/b/c", 5, 7)
    assert found.info == (None if kind is RecordKind.ONLINE else "Broken: it broke")


def test_the_reason_of_a_recorded_row_is_cut_behind_what_discovery_says() -> None:
    data = write_except((DevError("Long", Severity.ERR, "x" * 2_000, "here"),))
    frames = (device_topic("db:1", "a/b/c", True).encode(), b"\1", usual_call(0, True), data)
    found = discovered(encode_one(RecordKind.OFFLINE, 5_000, frames), DiscoveryEventKind.RECORD, "as last noted")
    assert found.info == "as last noted; Long: ".ljust(INFO_LENGTH, "x")


@pytest.mark.spec("TG-46")
@each(
    ("kind", "count", "cause", "row_kind", "info"),
    [
        (RecordKind.GAP, 5, GapCause.WAY, "gap", "5 events missing: on the way"),
        (RecordKind.GAP, 1, GapCause.AWAY, "gap", "1 event missing: no recorder ran"),
        (RecordKind.GAP, -1, GapCause.BUFFER, "gap", "nobody knows how many events missing: the recorder could keep"),
        (RecordKind.GAP, 5, GapCause.REFUSED, "gap", "5 events missing: the log refused their records"),
        (RecordKind.RESTART, -1, GapCause.WAY, "restart", "counted anew: after 4 came 8"),
    ],
)
def test_missing_events_and_restarts_are_rows(
    kind: RecordKind, count: int, cause: GapCause, row_kind: str, info: str
) -> None:
    frames = (TOPIC.encode(), b"\1", usual_call(0))
    found = discovered(encode_one(kind, 5, frames, first=4, last=8, count=count, cause=cause))
    assert (found.kind, found.gap_from, found.gap_to, found.symbol) == (row_kind, 4, 8, "attr")
    assert found.info is not None
    assert found.info.startswith(info)
    assert found.topic == str(TOPIC)


def test_what_is_no_record_is_a_row_with_its_bytes() -> None:
    found = discovered(b"rubbish")
    assert (found.event, found.raw) == ("bad_record", b"rubbish")
