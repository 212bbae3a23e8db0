"""The MAMA codecs against recorded bytes: every valid entry, every truncation of it, every invalid entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from mama_spark.mama.messages import omnm
from mama_spark.mama.messages.msg import FieldType, MamaMsg, MamaPrice, MamaTime
from mama_spark.mama.messages.omnm import BadMessage
from mama_spark.mama.messages.status import Status, StatusError
from mama_spark.mama.properties import TRUE, Properties
from mama_spark.openmama.bridge.row_codec import framed_topics
from mama_spark.openmama.wire import frames, naming
from mama_spark.openmama.wire.frames import FRAMINGS, ZMQ

from tests.support.tables import each
from tests.support.tiers import EXPLORE
from tests.support.vectors import vectors

#: The second file was recorded between programs of OpenMAMA. Its subscriptions are messages of ZeroMQ, not of OpenMAMA.
#: Files of captured messages (.mplay) are nothing that this package reads.
VECTORS = [
    v
    for v in vectors("openmama") + vectors("openmama-wire")
    if not {"subscription", "capture"} & {v["kind"], v.get("layer")}
]


def kind(*names: str, **having: str) -> list[Any]:
    chosen = [v for v in VECTORS if v["kind"] in names and all(v.get(k) == x for k, x in having.items())]
    return [pytest.param(v, id=v["name"]) for v in chosen]


def value_of(field_type: FieldType, value: Any) -> Any:
    """A value of the vectors in the form that callers pass."""
    if field_type is FieldType.MSG:
        return message_of(value)
    if isinstance(value, list):
        return [value_of(FieldType[field_type.name.removeprefix("VECTOR_")], v) for v in value]
    if field_type is FieldType.TIME:
        return MamaTime(value["seconds"], value["nanoseconds"], value["hints"], value["precision"], value["timezone"])
    if field_type is FieldType.PRICE:
        return MamaPrice(value["value"], value["hints"], value["currency"])
    if isinstance(value, dict):
        raw = bytes.fromhex(value["$hex"])
        return raw.decode("latin-1") if field_type is FieldType.CHAR else raw
    return float(value) if field_type in (FieldType.F32, FieldType.F64) else value


def message_of(fields: list[dict[str, Any]]) -> MamaMsg:
    msg = MamaMsg()
    for f in fields:
        msg.add(FieldType[f["type"]], f["name"], f["fid"], value_of(FieldType[f["type"]], f["value"]))
    return msg


@each("v", kind("payload"))
def test_a_payload_is_decoded_and_encoded(v: dict[str, Any]) -> None:
    data = bytes.fromhex(v["hex"])
    msg = omnm.decode(data)
    assert msg.as_dict()["fields"] == v["decoded"]["fields"]
    if v["encode"] == "exact":
        assert omnm.encode(msg) == data
        assert omnm.encode(message_of(v["decoded"]["fields"])) == data


@each("v", kind("payload"))
def test_a_truncated_payload_is_refused_or_has_fewer_fields(v: dict[str, Any]) -> None:
    data = bytes.fromhex(v["hex"])
    whole = omnm.decode(data).as_dict()["fields"]
    for n in range(len(data)):
        try:
            part = omnm.decode(data[:n]).as_dict()["fields"]
        except BadMessage:
            continue
        assert part == whole[: len(part)]
        assert len(part) < len(whole)


@each("v", kind("payload"))
def test_a_flipped_bit_is_read_or_refused_and_nothing_else(v: dict[str, Any]) -> None:
    data = bytearray.fromhex(v["hex"])
    for bit in range(0, len(data) * 8, 1 if EXPLORE else 3):
        data[bit // 8] ^= 1 << bit % 8
        try:
            msg = omnm.decode(data)
        except BadMessage:
            pass
        else:
            assert omnm.decode(omnm.encode(msg)).as_dict() == msg.as_dict()
        data[bit // 8] ^= 1 << bit % 8


def frame_of(v: dict[str, Any]) -> frames.BridgeFrame:
    d = v["decoded"]
    # "response" is what one of the two bridges calls a reply
    kind_ = frames.FrameType(d["type"].replace("response", "reply"))
    address = d.get("reply_to") or d.get("reply_subject") or ""
    return frames.BridgeFrame(kind_, d["topic"], omnm.encode(message_of(d["fields"])), address)


@pytest.mark.spec("OW1")
@each("v", kind("frame"))
def test_a_frame_of_either_zeromq_bridge(v: dict[str, Any]) -> None:
    data, framing = bytes.fromhex(v["hex"]), v["decoded"]["framing"]
    frame = FRAMINGS[framing].decode(data)
    if v["encode"] == "decode_only":  # its VECTOR_STRING has old bytes of the sender's buffer behind its strings
        assert [f.name for f in omnm.decode(frame.payload)] == [f["name"] for f in v["decoded"]["fields"]]
        assert FRAMINGS[framing].encode(frame) == data
        return
    assert frame == frame_of(v)
    assert FRAMINGS[framing].encode(frame_of(v)) == data
    header = len(data) - len(frame_of(v).payload)
    for n in range(header + 1):
        with pytest.raises(BadMessage):
            FRAMINGS[framing].decode(data[:n])


@pytest.mark.spec("OW3")
@each("v", kind("naming"))
def test_a_naming_frame(v: dict[str, Any]) -> None:
    data, d = bytes.fromhex(v["hex"]), dict(v["decoded"])
    assert d.pop("topic") == naming.NAMING_TOPIC
    frame = naming.NamingFrame(**d)
    assert naming.decode_naming(data) == frame
    assert naming.encode_naming(frame) == data
    for n in range(len(data)):
        with pytest.raises(BadMessage):
            naming.decode_naming(data[:n])


PEER = naming.NamingFrame("C", "p", "h", 1, "u", "tcp://h:1")
REQUEST = frames.BridgeFrame(frames.FrameType.REQUEST, "T", b"O\1\0", "_INBOX.1")


@each(
    "change",
    [
        {"type": "X"}, {"program": "p" * 257}, {"host": "h" * 65}, {"pid": 2**63}, {"uuid": ""}, {"endpoint": ""},
        {"host": "\ud800"}, {"uuid": "u\0"},
    ],
)  # fmt: skip
def test_a_naming_frame_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        naming.encode_naming(replace(PEER, **change))


@each("framing", ["zmq", "oz"])
@each(
    "change",
    [{"address": ""}, {"payload": b""}, {"topic": "a\0"}, {"topic": "\ud800"}, {"type": frames.FrameType.PUBLISH}],
)
def test_a_frame_that_its_framing_cannot_hold_is_refused(framing: str, change: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        FRAMINGS[framing].encode(replace(REQUEST, **change))


@pytest.mark.parametrize("v", kind("topic"))
def test_topics_as_openmama_frames_them(v: dict[str, Any]) -> None:
    rows = v["input"]
    parts = [pa.array([row[part] for row in rows], pa.string()) for part in ("root", "source", "symbol")]
    assert framed_topics([*parts], len(rows)).to_pylist() == [row["zeromq"] or None for row in rows]


@pytest.mark.parametrize("v", kind("properties"))
def test_a_properties_file(v: dict[str, Any]) -> None:
    properties = Properties.parse(v["input"]["text"], v["input"]["env"])
    for key, value in v["decoded"]["values"].items():
        assert properties.get(key) == value, key
    for key, answer in v["decoded"]["booleans"].items():
        assert (properties.get(key) in TRUE) is answer, key
    assert dict(properties) == {k: x for k, x in v["decoded"]["values"].items() if x is not None}


@each("v", kind("bad"))
def test_bad_entries_are_refused_by_their_layer(v: dict[str, Any]) -> None:
    framing = "oz" if v["name"].startswith("bad_oz") else "zmq"
    decoders: dict[str, Callable[[bytes], object]] = {
        "payload": omnm.decode,
        "frame": lambda data: FRAMINGS[framing].decode(data),
        "naming": naming.decode_naming,
    }
    data = bytes.fromhex(v["hex"])
    if v["layer"] == "payload" and "dir" in v:  # recorded with its frame, which is good
        data = FRAMINGS[framing].decode(data).payload
    with pytest.raises(BadMessage) as e:
        decoders[v["layer"]](data)
    assert e.value.info


@pytest.mark.spec("OW4")
def test_the_reserved_bytes_of_a_frame_may_have_any_value() -> None:
    data = bytearray(ZMQ.encode(REQUEST))
    data[2:10] = bytes(range(1, 9))
    assert ZMQ.decode(bytes(data)) == REQUEST


@pytest.mark.spec("OW6")
def test_what_c_programs_write_into_strings_does_not_lose_the_message() -> None:
    latin, stale = (omnm.decode(bytes.fromhex(v.values[0]["hex"])) for v in kind("payload_tolerant"))
    assert [(f.name, f.value) for f in latin] == [("n", "Soci\xe9t\xe9 G\xe9n\xe9rale")]
    assert [f.name for f in stale] == ["a", "b", "c"]
    assert stale.get("b")[:2] == ("ab", "cd"), "what lies behind them cannot be told from strings"
    assert stale.get("c") == 7


def test_another_version_is_refused_as_the_library_does() -> None:
    with pytest.raises(BadMessage) as e:
        omnm.decode(bytes.fromhex("4f02000f0100780001"))
    assert e.value.status is Status.WRONG_FIELD_TYPE


@each("v", kind("encode_error"))
def test_values_that_cannot_be_encoded_are_refused(v: dict[str, Any]) -> None:
    with pytest.raises(StatusError) as e:
        message_of(v["decoded"]["fields"])
    assert e.value.status is Status.INVALID_ARG
    assert not e.value.retryable


def test_every_entry_of_the_file_is_used() -> None:
    used = {"payload", "payload_tolerant", "frame", "naming", "topic", "properties", "bad", "encode_error"}
    assert {v["kind"] for v in VECTORS} == used
    assert {v["layer"] for v in VECTORS if v["kind"] == "bad"} == {"payload", "frame", "naming"}


def test_a_naming_frame_whose_host_is_no_utf8_is_refused() -> None:
    raw = bytearray(naming.encode_naming(PEER))
    at = raw.index(b"h\0")
    raw[at] = 0xFF
    with pytest.raises(BadMessage, match="is not UTF-8"):
        naming.decode_naming(bytes(raw))
