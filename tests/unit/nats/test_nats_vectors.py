"""The codecs against recorded bytes: every good entry, every cut of it, every bad one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts import topics
from mama_spark.contracts.errors import (
    DuplicateInFlight,
    ExpectationFailed,
    NoResponders,
    NotReady,
    OutcomeUnknown,
    OutOfResources,
    PublishError,
    RateLimited,
    Rejected,
)
from mama_spark.contracts.headers import MSG_ID
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.protocol import acks, fast_batch, frames, headers, parser

from tests.support.nats.frame_parser import FrameParser
from tests.support.tables import each

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "vectors" / "nats.json").read_text())


def kind(*names: str, **having: str) -> list[dict[str, Any]]:
    chosen = [v for v in VECTORS if v["kind"] in names and all(v.get(k) == x for k, x in having.items())]
    assert chosen, (names, having)
    return chosen


def data_of(v: dict[str, Any]) -> bytes:
    parts = v["hex"] if isinstance(v["hex"], list) else [v["hex"]]
    return b"".join(bytes.fromhex(p) for p in parts)


def raw(value: Any) -> bytes:
    return bytes.fromhex(value["$hex"]) if isinstance(value, dict) else str(value).encode()


def plain(f: parser.Frame, like: dict[str, Any]) -> dict[str, Any]:
    """A frame in the words of the vectors."""
    every: dict[str, Any] = {
        "op": f.op, "subject": f.subject.decode(), "sid": f.sid.decode(),
        "reply": None if f.reply is None else f.reply.decode(), "header_size": f.header_size,
        "total_size": f.header_size + len(f.payload), "headers": [list(h) for h in f.headers], "status": f.status,
        "status_text": f.status_text, "payload": f.payload, "text": f.text, "info": f.info,
    }  # fmt: skip
    return {k: every[k] for k in like if k in every}


def expected(like: dict[str, Any]) -> dict[str, Any]:
    told = {k: v for k, v in like.items() if k not in ("reply_class", "closes_connection")}
    if "payload" in told:
        told["payload"] = raw(told["payload"])
    return told


def check(v: dict[str, Any], found: list[parser.Frame]) -> None:
    wanted = v["decoded"]["frames"]
    assert len(found) == len(wanted), v["name"]
    assert [plain(f, w) for f, w in zip(found, wanted, strict=True)] == [expected(w) for w in wanted], v["name"]


@each("cut", ["whole", "in two", "byte by byte"])
def test_what_the_server_sends_is_read_however_it_is_cut(cut: str) -> None:
    for v in kind("server_frames", "stream"):
        data = data_of(v)
        ways = {
            "whole": [[data]],
            "in two": [[data[:at], data[at:]] for at in range(len(data) + 1)],
            "byte by byte": [[bytes([each]) for each in data]],
        }
        for parts in ways[cut]:
            reader = FrameParser()
            check(v, [frame for part in parts for frame in reader.receive(part)])


def test_what_is_no_protocol_is_refused() -> None:
    for v in kind("bad", layer="protocol"):
        with pytest.raises(parser.ProtocolError):
            pytest.fail(f"{v['name']} is read: {list(FrameParser().receive(data_of(v)))}")
    with pytest.raises(parser.ProtocolError, match="no end of line"):
        list(FrameParser().receive(b"MSG " + bytes(parser.MAX_LINE)))


def test_an_unreadable_acknowledgement_fails_its_flight_and_not_the_connection() -> None:
    for v in kind("bad", layer="ack"):
        (frame,) = FrameParser().receive(data_of(v))
        with pytest.raises(acks.AckError):
            pytest.fail(f"{v['name']} is read: {acks.read_reply(frame.payload)}")
        reply = acks.classify(frame)
        assert isinstance(reply, OutcomeUnknown), v["name"]
        assert reply.may_have_landed, v["name"]


CLASSES: dict[str, tuple[type[PublishError], ...]] = {
    "retry_hold": (NoResponders,),
    "retry_smaller_window": (RateLimited,),
    "retry_later": (DuplicateInFlight,),
    "retry": (NotReady,),
    "retry_backoff": (OutOfResources,),
    "fail": (Rejected,),
    "expectation_failed": (ExpectationFailed,),
}


def test_replies_are_classified() -> None:
    for v in kind("server_frames"):
        found = list(FrameParser().receive(data_of(v)))
        for frame, wanted in zip(found, v["decoded"]["frames"], strict=True):
            told = wanted.get("reply_class")
            if told is not None:
                _same_class(acks.classify(frame), told)


def _same_class(reply: acks.Reply, told: dict[str, Any]) -> None:
    match told["outcome"]:
        case "ack":
            assert isinstance(reply, acks.PubAck)
            assert (reply.stream, reply.sequence) == (told["ack"]["stream"], told["ack"]["seq"])
            assert reply.duplicate == told["duplicate"]
            assert reply.count == told["ack"].get("count", 0)
        case "empty_ack":
            assert isinstance(reply, acks.BatchMemberAccepted)
        case "flow_ack":
            assert reply == acks.FlowAck(told["flow"]["seq"], told["flow"]["msgs"])
        case "gap":
            assert reply == acks.BatchGap(told["flow"]["last_seq"], told["flow"]["seq"])
        case "err":
            assert isinstance(reply, acks.BatchRejection)
            assert (reply.seq, reply.error.code) == (told["flow"]["seq"], told["flow"]["error"]["err_code"])
        case _:
            assert isinstance(reply, PublishError)
            if told.get("error", {}).get("err_code") == 10208:  # of a batch: the batch knows what it means
                assert isinstance(reply, OutcomeUnknown)
                return
            assert isinstance(reply, CLASSES[told["class"]])
            assert reply.may_have_landed == (told["stored"] == "unknown")


def _batch_of(f: dict[str, Any]) -> tuple[MessageBatch, frames.ReplySubject | None]:
    reply = None if f["reply"] is None else frames.ReplySubject(f["reply"].encode(), numbered=False)
    pairs, ids = list(f.get("headers", [])), None
    if pairs and pairs[0][0] == MSG_ID:
        ids = [pairs.pop(0)[1]]
    named: dict[str, list[str]] = {}
    for name, value in pairs:
        named.setdefault(name, []).append(value)
    return MessageBatch.of([f["subject"]], [raw(f["payload"])], [named] if named else None, ids), reply


def test_frames_are_made_byte_for_byte() -> None:
    for v in kind("client_frames", encode="exact"):
        published = [f for f in v["decoded"]["frames"] if f["op"] in ("PUB", "HPUB")]
        made = b""
        for f in published:
            batch, reply = _batch_of(f)
            of_atomic_batch = any(name.lower() in headers.RESERVED for name, _ in f.get("headers", []))
            assert bool(headers.check(batch, 1024 * 1024)[0]) is (of_atomic_batch and batch.ids is None), v["name"]
            made += b"".join(frames.Framer(reply).frames(batch).pieces)
        if published:
            assert made == data_of(v), v["name"]
        else:  # what nats-py sends for us
            assert {f["op"] for f in v["decoded"]["frames"]} <= {"SUB", "UNSUB", "PING", "PONG"}, v["name"]


def test_what_must_not_be_encoded_is_refused() -> None:
    for v in kind("encode_error"):
        f = v["decoded"]
        batch, _ = _batch_of(f)
        bad, _ = headers.check(batch, f.get("max_payload", 1024 * 1024))
        too_long = len(f["subject"]) + len(f["reply"] or "") + 24 > frames.MAX_CONTROL_LINE
        assert bad or topics.unpublishable(batch.topics.dictionary).any() or too_long, v["name"]


def test_subjects_are_accepted_or_refused() -> None:
    for case in (case for v in kind("match") for case in v["input"]):
        batch = MessageBatch.of([case["subject"]], [b""])
        bad = bool(topics.unpublishable(batch.topics.dictionary)[0])
        assert bad is not case["match"], case
        if bad:
            assert topics.why_unpublishable(case["subject"]), case


def test_fast_ingest_reply_subjects() -> None:
    ops = {
        "start": fast_batch.START,
        "append": fast_batch.APPEND,
        "commit_eob": fast_batch.END,
        "commit": 2,
        "ping": 4,
    }
    for case in (case for v in kind("topic") for case in v["input"]):
        subject, parts = case["subject"].encode(), case["parts"]
        inbox = parts["inbox"].encode() + b"."
        assert fast_batch.parse_reply(subject, inbox) == (parts["batch"], parts["seq"]), case
        if parts["gap"] == "fail":
            made = fast_batch.reply_prefix(inbox, parts["batch"], parts["flow"])
            assert made + b"%d" % parts["seq"] + fast_batch.reply_suffix(ops[parts["op"]]) == subject, case
