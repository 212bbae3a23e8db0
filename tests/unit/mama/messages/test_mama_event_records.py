"""Publisher and topic events as messages: names, never numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.mama.messages import event_records
from mama_spark.mama.messages.event_records import FIELDS, EventRecord, decode_event, encode_event
from mama_spark.mama.messages.msg import FieldType
from mama_spark.mama.messages.omnm import decode, encode
from mama_spark.mama.messages.source_records import DEFAULT_FIELDS, BadSourceRecord
from mama_spark.mama.messages.status import Status, StatusError
from mama_spark.mama.states import PublisherState, TransportTopicEvent, string_for_state

from tests.support.tables import each

TEXT = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
RECORDS = st.builds(
    EventRecord,
    kind=st.sampled_from(["publisher", "topic"]),
    event=st.sampled_from(["create", "live", "error", "destroy", "counts", *map(str, TransportTopicEvent)]),
    at_us=st.integers(-(2**60), 2**60),
    source_id=st.none() | st.integers(0, 2**64 - 1),
    code=st.none() | st.integers(-(2**31), 2**31 - 1),
    **dict.fromkeys(("taken", "acked", "failed", "in_flight"), st.none() | st.integers(0, 2**64 - 1)),
    **dict.fromkeys(("source_name", "topic", "root", "source", "symbol", "status", "info", "publisher", "state"), TEXT),
)
ERROR = EventRecord("topic", TransportTopicEvent.PUBLISH_ERROR, 1_700_000_000_123_456, topic="a.b", code=404)


@pytest.mark.spec("PE-17")
@given(RECORDS)
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


@each("change", [{"kind": "flight"}, {"event": ""}, {"event": "4"}])
def test_invalid_events_are_neither_encoded_nor_decoded(change: dict[str, Any]) -> None:
    with pytest.raises(BadSourceRecord):
        encode_event(replace(ERROR, **change))
    msg = encode_event(ERROR)
    for attribute, value in change.items():
        name, fid, kind = FIELDS[attribute]
        msg.update(kind, name, fid, value)
    with pytest.raises(BadSourceRecord):
        decode_event(msg)


@each("attribute", ["kind", "event", "at_us"])
def test_an_event_has_a_kind_a_name_and_a_time(attribute: str) -> None:
    msg = encode_event(ERROR)
    msg.fields[:] = [f for f in msg if f.name != FIELDS[attribute][0]]
    with pytest.raises(BadSourceRecord, match=f"{FIELDS[attribute][0]} missing"):
        decode_event(msg)


def test_a_field_of_another_type_is_refused_and_foreign_fields_are_ignored() -> None:
    msg = encode_event(ERROR)
    msg.add_u8("EventInfo", 1, 1)
    msg.add_string("Other", 10112, "x")
    assert decode_event(msg) == ERROR
    msg.add_u8("EventInfo", 10112, 1)
    with pytest.raises(BadSourceRecord, match=r"EventInfo\[10112\] must be STRING, got U8"):
        decode_event(msg)


def test_an_id_or_a_code_beyond_its_width_is_refused() -> None:
    for bad in (replace(ERROR, source_id=2**64), replace(ERROR, code=2**31), replace(ERROR, topic="a\0")):
        with pytest.raises(StatusError):
            encode_event(bad)
