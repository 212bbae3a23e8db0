"""Records of sources and of their events."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ConfigError, MamaError
from mama_spark.mama.messages import event_records, source_records
from mama_spark.mama.messages.event_records import FIELDS, EventRecord, decode_event, encode_event
from mama_spark.mama.messages.msg import FieldType, MamaMsg
from mama_spark.mama.messages.omnm import decode, encode
from mama_spark.mama.messages.source_records import (
    DEFAULT_FIELDS,
    WORDS,
    BadSourceRecord,
    FieldId,
    SourceFields,
    SourceRecord,
    decode_source,
    encode_source,
)
from mama_spark.mama.messages.status import Status, StatusError
from mama_spark.mama.properties import Properties
from mama_spark.mama.states import PublisherState, TransportTopicEvent, string_for_state

from tests.support.tables import each
from tests.support.vectors import vectors

# --- source records: one message per source, its fields configurable, decoded by fid and name -------------------------

BYTES = {v["name"]: bytes.fromhex(v["hex"]) for v in vectors("openmama") if v["name"].startswith("omnm_source")}

FULL = SourceRecord("PY_SRC", 2**63 + 5, "ONLINE", "OK", "BEST", "DELAYED", "MARKETDATA")
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
RECORDS = st.builds(
    SourceRecord, TEXT.filter(bool), st.none() | st.integers(0, 2**64 - 1), *[st.none() | TEXT] * 5,
    st.dictionaries(TEXT.filter(lambda name: name and name not in DEFAULT_FIELDS.by_name), TEXT, max_size=4),
)  # fmt: skip


def message(*fields: tuple[str, int, FieldType, Any]) -> MamaMsg:
    msg = MamaMsg()
    for name, fid, field_type, value in fields:
        msg.add(field_type, name, fid, value)
    return msg


@pytest.mark.spec("SD-17")
def test_the_topic_of_the_request_is_reserved() -> None:
    assert source_records.MAMA_SOURCE_DISCOVERY_TOPIC == "_MAMA_SOURCE_DISCOVERY"


@pytest.mark.spec("SD-05", "SD-06", "SD-08-SD-12")
def test_a_full_record_is_written_and_read_byte_by_byte() -> None:
    data = BYTES["omnm_source_record_full"]
    assert encode(encode_source(FULL)) == data
    assert decode_source(decode(data)) == (FULL, ())


@pytest.mark.spec("SD-05")
def test_a_record_may_consist_of_a_name() -> None:
    data = BYTES["omnm_source_record_name_only"]
    assert encode(encode_source(SourceRecord("PY_SRC"))) == data
    record = decode_source(decode(data)).record
    assert (record, record.key) == (SourceRecord("PY_SRC"), ("PY_SRC", None))


@pytest.mark.spec("SD-05-SD-12")
@given(RECORDS)
def test_any_record_round_trips(record: SourceRecord) -> None:
    """Values that no enumeration knows stay as they are"""
    assert decode_source(decode(encode(encode_source(record)))) == (record, ())


@pytest.mark.spec("SD-07")
def test_unknown_fields_are_kept_as_text() -> None:
    record, collisions = decode_source(
        message(
            ("SourceName", 10001, FieldType.STRING, "S"),
            ("Rate", 20001, FieldType.F64, 1.5),
            ("", 20002, FieldType.BOOL, True),
            ("Symbols", 0, FieldType.VECTOR_STRING, ["a", "é"]),
            ("Blob", 0, FieldType.OPAQUE, b"\1"),
            ("Inner", 0, FieldType.MSG, message(("x", 1, FieldType.U8, 1))),
            ("Nan", 0, FieldType.F64, float("nan")),
        )
    )
    inner = record.capabilities["Inner"]
    assert {k: v for k, v in record.capabilities.items() if k != "Inner"} == {
        "Rate": "1.5", "20002": "true", "Symbols": '["a", "é"]', "Blob": '{"$hex": "01"}', "Nan": "nan",
    }  # fmt: skip
    assert json.loads(inner)[0]["value"] == 1
    assert collisions == ()


@pytest.mark.spec("SD-13")
def test_a_fid_that_another_program_uses_is_a_collision_and_does_no_harm() -> None:
    record, collisions = decode_source(decode(BYTES["omnm_source_record_collision"]))
    assert record == SourceRecord("S", capabilities={"MdSeqNum": "17"})
    assert collisions == ("MdSeqNum[10001] has the fid of SourceName",)


NAME = ("SourceName", 10001, FieldType.STRING, "S")


@pytest.mark.spec("SD-06", "SD-13")
@each(
    ("fields", "record", "collisions"),
    [
        ([NAME, ("SourceState", 10002, FieldType.STRING, "ONLINE")],
         SourceRecord("S", capabilities={"SourceState[10002]": "ONLINE"}),
         ["SourceState[10002] has the fid of SourceID and has the name of fid 10003"]),
        # the first one counts
        ([NAME, (*NAME[:3], "T"), ("x", 0, FieldType.STRING, "1"), ("x", 0, FieldType.STRING, "2")],
         SourceRecord("S", capabilities={"SourceName[10001]": "T", "x": "1"}),
         ["SourceName[10001] is repeated; the first one counts", "x[0] is repeated; the first one counts"]),
        # without a name, or without a fid, by the other
        ([("", 10001, FieldType.STRING, "S"), ("SourceState", 0, FieldType.STRING, "OFFLINE")],
         SourceRecord("S", state="OFFLINE"), []),
        ([NAME, ("SourceID", 10002, FieldType.I16, 5)], SourceRecord("S", 5), []),  # of any width
    ],
)  # fmt: skip
def test_fields_are_ours_by_name_and_fid(fields: list[Any], record: SourceRecord, collisions: list[str]) -> None:
    assert decode_source(message(*fields)) == (record, tuple(collisions))


@each(
    ("fields", "why"),
    [
        ([], r"no field SourceName\[10001\]"),
        ([("SourceName", 10001, FieldType.STRING, "")], r"no field SourceName\[10001\]"),
        ([("SourceName", 7, FieldType.STRING, "S")], r"no field SourceName\[10001\]"),
        ([("SourceName", 10001, FieldType.U8, 1)], r"SourceName\[10001\] must be STRING, got U8"),
        ([("SourceState", 10003, FieldType.BOOL, True)], "must be STRING, got BOOL"),
        ([("SourceID", 10002, FieldType.STRING, "7")], "must be U64, got STRING '7'"),
        ([("SourceID", 10002, FieldType.I32, -7)], "must be U64, got I32 '-7'"),
    ],
)
def test_an_invalid_record_is_refused_with_the_reason(fields: list[Any], why: str) -> None:
    with pytest.raises(BadSourceRecord, match=why) as e:
        decode_source(message(*fields))
    assert isinstance(e.value, MamaError)
    assert not e.value.retryable


def test_values_that_no_message_can_hold_are_not_encoded() -> None:
    with pytest.raises(BadSourceRecord, match="needs a name"):
        encode_source(SourceRecord(""))
    with pytest.raises(BadSourceRecord, match="'SourceState' is named like"):
        encode_source(SourceRecord("S", capabilities={"SourceState": "x"}))
    for bad in (SourceRecord("S", -1), SourceRecord("S", 2**64), SourceRecord("S\0"), SourceRecord("S", state="\0")):
        with pytest.raises(StatusError):
            encode_source(bad)


# --- names and fids ------------------------------------------------------------------------------------------

DEFAULTS = [
    ("source", "SourceName", 10001),  # SD-35, SD-36
    ("sourceid", "SourceID", 10002),  # SD-37, SD-38
    ("sourcestate", "SourceState", 10003),  # SD-39, SD-40
    ("sourcedatastate", "SourceDataState", 10004),  # SD-41, SD-42
    ("sourceqosrate", "SourceQoSRate", 10005),  # SD-43, SD-44
    ("sourceqostimeliness", "SourceQoSTimeliness", 10006),  # SD-45, SD-46
    ("sourcedatadict", "SourceDataDict", 10007),  # SD-47, SD-48
]


@pytest.mark.spec("SD-13", "SD-35-SD-48")
@each(("word", "name", "fid"), DEFAULTS)
def test_each_of_the_fourteen_properties_changes_its_field_and_no_other(word: str, name: str, fid: int) -> None:
    named = SourceFields.from_properties(Properties.parse(f"mama.sourcediscovery.{word}.name=Mine", {}))
    numbered = SourceFields.from_properties(Properties.parse(f"mama.sourcediscovery.{word}.fid=333", {}))
    assert getattr(named, word) == FieldId("Mine", fid)
    assert getattr(numbered, word) == FieldId(name, 333)
    for made in (named, numbered):
        assert [w for w in WORDS if getattr(made, w) != getattr(DEFAULT_FIELDS, w)] == [word]
        record = SourceRecord("S", 1, "ONLINE", "OK", "BEST", "BEST", "D", {"x": "y"})
        msg = encode_source(record, made)
        assert tuple(getattr(made, word)) in {(f.name, f.fid) for f in msg}
        assert decode_source(decode(encode(msg)), made) == (record, ())


@pytest.mark.spec("SD-35-SD-48")
@each(
    ("text", "why"),
    [
        ("source.fid=0", "must be from 1 to 65535, got 0"), ("source.fid=65536", "must be from 1 to 65535, got 65536"),
        ("sourceid.fid=-1", "got '-1'"), ("sourceid.fid=ten", "got 'ten'"),
        ("sourceid.fid=10001", "sourceid.fid is 10001, and so is mama.sourcediscovery.source.fid"),
        ("sourcestate.name=SourceName", "sourcestate.name is 'SourceName', and so is"),
    ],
)  # fmt: skip
def test_fids_are_16_bits_and_nothing_is_given_twice(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as e:
        SourceFields.from_properties(Properties.parse(f"mama.sourcediscovery.{text}", {}, "conf/my.properties"))
    assert str(e.value).startswith("conf/my.properties")


@pytest.mark.parametrize("name", ["", "Source\0Name"])
def test_a_field_needs_a_name(name: str) -> None:
    with pytest.raises(ConfigError, match=r"source\.name must be a name"):
        SourceFields(source=FieldId(name, 10001))


# --- publisher and topic events as messages: names, never numbers -----------------------------------------------------

TEXT_OF_RECORDS = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
RECORDS_OF_RECORDS = st.builds(
    EventRecord,
    kind=st.sampled_from(["publisher", "topic"]),
    event=st.sampled_from(["create", "live", "error", "destroy", "counts", *map(str, TransportTopicEvent)]),
    at_us=st.integers(-(2**60), 2**60),
    source_id=st.none() | st.integers(0, 2**64 - 1),
    code=st.none() | st.integers(-(2**31), 2**31 - 1),
    **dict.fromkeys(("taken", "acked", "failed", "in_flight"), st.none() | st.integers(0, 2**64 - 1)),
    **dict.fromkeys(
        ("source_name", "topic", "root", "source", "symbol", "status", "info", "publisher", "state"), TEXT_OF_RECORDS
    ),
)
ERROR = EventRecord("topic", TransportTopicEvent.PUBLISH_ERROR, 1_700_000_000_123_456, topic="a.b", code=404)


@pytest.mark.spec("PE-17")
@given(RECORDS_OF_RECORDS)
def test_any_event_round_trips(record: EventRecord) -> None:
    assert decode_event(decode(encode(encode_event(record)))) == record


@pytest.mark.spec("PE-15", "PE-17", "PE-35")
@each("event", TransportTopicEvent)
@each("state", PublisherState)
def test_events_statuses_and_states_are_encoded_as_names(event: TransportTopicEvent, state: PublisherState) -> None:
    record = replace(ERROR, event=event, status=Status.NOT_ENTITLED.name, state=string_for_state(state))
    msg = encode_event(record)
    assert msg.get("EventName", 10102) == event.name
    assert (msg.get("EventStatus"), msg.get("EventPublisherState")) == ("NOT_ENTITLED", state.name)
    assert [f.type.name for f in msg if f.type is not FieldType.STRING] == ["TIME", "I32"]  # when, and a foreign code


def test_the_documented_fields_are_those_that_are_written() -> None:
    doc = event_records.__doc__ or ""
    rows = [line.split()[:3] for line in doc.splitlines() if line.startswith("``")]
    assert rows == [[f"``{name}``", str(fid), kind.name] for name, fid, kind in FIELDS.values()]
    assert [fid for _, fid, _ in FIELDS.values()] == list(range(10101, 10101 + len(FIELDS)))
    assert not {fid for _, fid, _ in FIELDS.values()} & DEFAULT_FIELDS.by_fid.keys()


@pytest.mark.spec("PE-15")
def test_any_text_of_a_middleware_can_be_encoded() -> None:
    record = replace(ERROR, info="denied\0 \ud800 é")
    assert decode_event(decode(encode(encode_event(record)))).info == "denied\ufffd ? é"


@each(("attribute", "value"), [("kind", "flight"), ("event", ""), ("event", "4"), ("at_us", None)])
def test_invalid_events_are_neither_encoded_nor_decoded(attribute: str, value: str | None) -> None:
    """An event has a kind, a name and a time."""
    name, fid, kind = FIELDS[attribute]
    msg, without = encode_event(ERROR), encode_event(ERROR)
    change: dict[str, Any] = {attribute: value}
    if value is not None:
        with pytest.raises(BadSourceRecord):
            encode_event(replace(ERROR, **change))
        msg.update(kind, name, fid, value)
        with pytest.raises(BadSourceRecord):
            decode_event(msg)
    without.fields[:] = [f for f in without if f.name != name]
    with pytest.raises(BadSourceRecord, match=f"{name} missing"):
        decode_event(without)


def test_a_field_of_another_type_is_refused_and_foreign_fields_are_ignored() -> None:
    msg = encode_event(ERROR)
    msg.add(FieldType.U8, "EventInfo", 1, 1)
    msg.add(FieldType.STRING, "Other", 10112, "x")
    assert decode_event(msg) == ERROR
    msg.add(FieldType.U8, "EventInfo", 10112, 1)
    with pytest.raises(BadSourceRecord, match=r"EventInfo\[10112\] must be STRING, got U8"):
        decode_event(msg)
