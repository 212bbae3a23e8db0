"""Event codec with recorded and with invalid frames (TG-11 to TG-19, TG-36)."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np
import pytest
from mama_spark.tango import topics, types
from mama_spark.tango.events import event_codec
from mama_spark.tango.events.event_codec import BadEvent, CallInfo, Event, Heartbeat, decode, encode
from mama_spark.tango.giop.cdr import CdrError
from mama_spark.tango.idl import structs
from mama_spark.tango.types import AttributeValue, DataType, Dim, PipeBlob, PipeData, PipeElement, ValueKind

from tests.support.memory import peak_of
from tests.support.tables import each
from tests.support.tango.plain_values import attribute_value, plain, time_of
from tests.support.tiers import EXPLORE
from tests.support.vectors import vectors as all_vectors

VECTORS = all_vectors("tango")


def vectors(*kinds: str, **wanted: Any) -> list[Any]:
    chosen = [v for v in VECTORS if v["kind"] in kinds and all(v.get(k) == w for k, w in wanted.items())]
    return [pytest.param(v, id=v["name"]) for v in chosen]


def frames_of(vector: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(h) for h in vector["hex"]]


# --- what is read, in the words of the vectors -----------------------------------------------------------------


def config(c: types.AttributeConfig) -> dict[str, Any]:
    return json.loads(json.dumps({**asdict(c), "data_format": c.data_format.name}))  # type: ignore[no-any-return]


def element(e: PipeElement) -> dict[str, Any]:
    return {
        "name": e.name, "value_kind": e.kind.name.lower(), "value": plain(e.content),
        "inner": [element(i) for i in e.inner], "inner_blob_name": e.inner_blob_name,
    }  # fmt: skip


def data(value: Any) -> dict[str, Any]:
    if isinstance(value, AttributeValue):
        return {"attribute_value": attribute_value(value)}
    if isinstance(value, types.AttributeConfig):
        return {"attr_conf": config(value)}
    if isinstance(value, types.DataReady):
        return {"data_ready": {**asdict(value), "data_type_name": "DEV_" + DataType(value.data_type).name}}
    if isinstance(value, types.InterfaceChange):
        cmds = [asdict(c) for c in value.cmds]
        atts = [config(c) for c in value.atts]
        return {"intr_change": {"dev_started": value.dev_started, "cmds": cmds, "atts": atts}}
    assert isinstance(value, PipeData)
    blob = {"name": value.blob.name, "elements": [element(e) for e in value.blob.elements]}
    return {"pipe": {"name": value.name, "time": time_of(value.time), "blob": blob}}


def parts(topic: topics.Topic) -> dict[str, Any]:
    name = "heartbeat" if topic.event is None else topic.event.wire_name
    return {
        "tango_host": topic.tango_host, "device": topic.device, "attribute": topic.attribute, "dbase": topic.dbase,
        "event": name, "idl": topic.idl,
    }  # fmt: skip


def whole(event: Event | Heartbeat) -> dict[str, Any]:
    call = event.call
    told = {
        "topic": str(event.topic), "parts": parts(event.topic), "endian": "little" if event.little else "big",
        "call_info": {"version": call.version, "ctr": call.ctr, "method_name": call.method, "oid": plain(call.oid),
                      "call_is_except": call.is_except},
    }  # fmt: skip
    if isinstance(event, Heartbeat):
        return told
    return {**told, **(data(event.data) if event.data is not None else {"errors": plain(event.errors)})}


# --- the rules -------------------------------------------------------------------------------------------------


@pytest.mark.spec("TG-11-TG-19")
@each("vector", vectors("event", "heartbeat"))
def test_recorded_frames_are_read_to_the_last_octet_and_written_back(vector: dict[str, Any]) -> None:
    """Every event and its data. Encoded padding is zero; vectors with other padding are the same events, so encoding
    them gives zeros there."""
    event = decode(frames_of(vector))
    assert whole(event) == vector["decoded"]
    twin = vector["name"].removesuffix("_raw_pads")
    exact = next(v for v in VECTORS if v["name"] == ("change_double_scalar" if twin == "change_double" else twin))
    assert encode(event) == frames_of(exact)


@each("vector", vectors("bad", layer="event"))
def test_invalid_frames_are_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(BadEvent):
        decode(frames_of(vector))


@each("vector", vectors("event", "heartbeat"))
def test_every_cut_of_every_frame_is_refused(vector: dict[str, Any]) -> None:
    whole_frames = frames_of(vector)
    for index in range(1, len(whole_frames)):
        cut = list(whole_frames)
        octets = len(whole_frames[index])
        for size in range(octets):
            if not EXPLORE and 300 < size < octets - 100 and size % 7:
                continue  # of a long frame some, every day
            cut[index] = whole_frames[index][:size]
            with pytest.raises(BadEvent):
                decode(cut)
    with pytest.raises(BadEvent):
        decode(whole_frames[:2])


@each("vector", [v for v in vectors("event", "heartbeat") if len(v.values[0]["hex"][-1]) < 2000])
def test_a_flipped_bit_gives_an_event_or_an_error(vector: dict[str, Any]) -> None:
    whole_frames = frames_of(vector)
    for index, frame in enumerate(whole_frames):
        for bit in range(0, 8 * len(frame), 1 if EXPLORE else 11):
            flipped = bytearray(frame)
            flipped[bit // 8] ^= 1 << bit % 8
            try:
                event = decode([*whole_frames[:index], bytes(flipped), *whole_frames[index + 1 :]])
            except BadEvent:
                continue
            assert decode(encode(event)) == event


def read_announced_counts() -> None:
    kinds = (ValueKind.DOUBLE, ValueKind.STRING, ValueKind.STATE, ValueKind.ENCODED)
    for kind, count in product(kinds, (2**31 - 1, 2**32 - 1, 100_000)):
        announced = count.to_bytes(4, "little") + bytes(200)
        data = event_codec.MAGIC + int(kind).to_bytes(4, "little") + announced
        with pytest.raises(BadEvent):
            decode([b"tango://h:1/a/b/c/d.idl5_change", b"\1", event_codec.usual_call(1), data])
        with pytest.raises(CdrError):
            event_codec.read_except(event_codec.MAGIC + announced, little=True)


def test_announced_counts_allocate_nothing() -> None:
    assert peak_of(read_announced_counts).python < 50_000, "11 kB; the smallest count is 100,000"


@each("beer", [[b"I like beer"], [], [b"", b"I like beer"], [b"x"] * 5])
def test_the_dummy_frame_of_servers_is_no_event(beer: list[bytes]) -> None:
    with pytest.raises(BadEvent):
        decode(beer)


def test_errors_of_a_pipe_follow_four_or_eight_bytes_of_magic() -> None:
    errors = (types.DevError("R", types.Severity.PANIC, "desc", "origin"),)
    event = Event(topics.parse("tango://h:1/a/b/c/p.pipe"), CallInfo(1, is_except=True), None, errors)
    sent = encode(event)
    assert decode(sent) == event
    assert decode([*sent[:3], event_codec.MAGIC + sent[3]]) == event


def test_blobs_nest_as_deep_as_allowed_and_no_deeper() -> None:
    def nested(depth: int) -> PipeElement:
        inner = (nested(depth - 1),) if depth else ()
        return PipeElement("e", ValueKind.NO_DATA, None, inner, "inner")

    topic = topics.parse("tango://h:1/a/b/c/p.pipe")
    deepest = PipeData("p", 5, PipeBlob("top", (nested(structs.MAX_DEPTH - 1),)))
    event = Event(topic, CallInfo(0), deepest)
    assert decode(encode(event)) == event
    with pytest.raises(CdrError, match="nest"):
        event_codec.write_data(topic, PipeData("p", 5, PipeBlob("top", (nested(structs.MAX_DEPTH),))))


def test_data_must_fit_the_topic() -> None:
    value = AttributeValue("d", ValueKind.DOUBLE, np.array([1.0]), 0, data_type=DataType.DOUBLE)
    for name in ("heartbeat", "data_ready", "pipe", "attr_conf"):
        attribute = "" if name == "heartbeat" else "/d"
        with pytest.raises(CdrError):
            event_codec.write_data(topics.parse(f"tango://h:1/a/b/c{attribute}.{name}"), value)
    event = Event(topics.parse("tango://h:1/a/b/c/d.change"), CallInfo(1, is_except=True), value)
    with pytest.raises(CdrError, match="errors"):
        encode(event)


def test_a_value_without_its_data_type_goes_to_older_clients_alone() -> None:
    value = AttributeValue("d", ValueKind.DOUBLE, np.array([1.0]), 0)
    old = topics.parse("tango://h:1/a/b/c/d.change")
    assert event_codec.read_data(old, event_codec.write_data(old, value), little=True) == value
    with pytest.raises(CdrError, match="data type"):
        event_codec.write_data(topics.parse("tango://h:1/a/b/c/d.idl5_change"), value)


@pytest.mark.parametrize("little", [True, False])
def test_the_usual_call_info_equals_the_general_encoder(little: bool) -> None:
    for ctr in (0, 1, 2**31, 2**32 - 1):
        for flag in (False, True):
            frame = event_codec.usual_call(ctr, flag, little)
            assert frame == event_codec.write_call(CallInfo(ctr, flag), little)
            assert len(frame) == 21
            assert event_codec.read_call(frame, little) == CallInfo(ctr, flag)
    with pytest.raises(CdrError):
        event_codec.usual_call(2**32)


def test_a_call_info_of_another_shape_is_read_too() -> None:
    """Some senders put their ZeroMQ release where the version stands, and a method or an object id are allowed."""
    call = CallInfo(7, version=-435, method="push", oid=b"\1\2\3")
    for little in (True, False):
        assert event_codec.read_call(event_codec.write_call(call, little), little) == call


@pytest.mark.spec("TG-19")
def test_event_types_have_the_numbers_and_names_of_the_wire() -> None:
    told = {event.wire_name: int(event) for event in types.EventType}
    assert told == {
        "change": 0, "quality": 1, "periodic": 2, "archive": 3, "user_event": 4, "attr_conf": 5, "data_ready": 6,
        "intr_change": 7, "pipe": 8, "alarm": 9,
    }  # fmt: skip
    assert {e.wire_name for e in types.EventType if e.carries_value} == {
        "change", "quality", "periodic", "archive", "user_event", "alarm",
    }  # fmt: skip


def test_dimensions_above_the_content_are_refused() -> None:
    topic = topics.parse("tango://h:1/a/b/c/d.idl5_change")
    for r_dim in (Dim(3, 0), Dim(1, 3), Dim(2**31 - 1, 2**31 - 1), Dim(-1, 0), Dim(1, -1)):
        value = AttributeValue("d", ValueKind.DOUBLE, np.array([1.0, 2.0]), 0, data_type=5, r_dim=r_dim)
        with pytest.raises(CdrError, match="dimensions"):
            event_codec.read_data(topic, event_codec.write_data(topic, value), little=True)
