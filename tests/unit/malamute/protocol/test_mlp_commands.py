"""The MLP codec against recorded bytes, and against arbitrary bytes (ML-20)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import BadFrame, Command, ExtraFrames, decode, encode

from tests.support.tables import each
from tests.support.tiers import examples
from tests.support.vectors import vectors

VECTORS = vectors("malamute")

#: fields of the vectors that have another name here
NAMES = {"status_code": "code", "status_reason": "reason"}
SAMPLES: dict[str, Any] = {
    "address": b"addr", "stream": b"strm", "pattern": b"pat.*", "subject": b"subj", "sender": b"sndr",
    "tracker": b"trk", "timeout": 0x01020304, "reason": b"why", "amount": 1000, "code": 200,
    "content": [b"one", b"two"], "trailing": b"",
}  # fmt: skip


def kind(*names: str, layers: set[str] | None = None) -> list[Any]:
    chosen = [v for v in VECTORS if v["kind"] in names and (layers is None or v["layer"] in layers)]
    return [pytest.param(v, id=v["name"]) for v in chosen]


def octets(value: Any) -> Any:
    if isinstance(value, list):
        return [octets(v) for v in value]
    if isinstance(value, dict):
        return bytes.fromhex(value["$hex"])
    return value.encode() if isinstance(value, str) else value


def command_of(decoded: dict[str, Any]) -> Command:
    """The command that the vectors describe."""
    values = {NAMES.get(k, k): octets(v) for k, v in decoded.items()}
    cls = wire.COMMANDS[decoded["id"]]
    for fixed in ("id", "command", "protocol", "version"):
        values.pop(fixed, None)
    return cls(**values)


def frames_of(vector: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(h) for h in vector["hex"]]


@each("vector", kind("frame"))
def test_recorded_frames_are_read_and_written_byte_for_byte(vector: dict[str, Any]) -> None:
    frames, want = frames_of(vector), command_of(vector["decoded"])
    assert type(want).__name__.upper() == vector["decoded"]["command"].replace("CONNECTION ", "").replace(" ", "")
    assert decode(frames) == want
    if vector["encode"] == "exact":
        assert encode(want) == frames


@pytest.mark.spec("P1-P18")
@each("number", range(1, 19))
def test_each_command_keeps_its_fields_when_sent_twice(number: int) -> None:
    """Set fields, send twice, receive, compare; and through the text form, here ``repr``."""
    cls = wire.COMMANDS[number]
    command = cls(**{f.name: SAMPLES[f.name] for f in fields(cls)})  # type: ignore[arg-type]
    first, second = encode(command), encode(command)
    assert first == second
    assert decode(first) == decode(second) == command
    assert eval(repr(command), vars(wire)) == command


@each("vector", kind("frame"))
def test_every_cut_of_a_good_frame_is_refused(vector: dict[str, Any]) -> None:
    frame, *content = frames_of(vector)
    whole = len(frame) - len(octets(vector["decoded"].get("trailing", "")))
    for size in range(whole):
        with pytest.raises(BadFrame):
            decode([frame[:size], *content])


@each("vector", kind("bad", layers={"frame", "message"}))
def test_bad_frames_are_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(BadFrame):
        decode(frames_of(vector))


@each("vector", kind("bad", layers={"server"}))
def test_what_only_a_server_can_refuse_is_read(vector: dict[str, Any]) -> None:
    assert encode(decode(frames_of(vector))) == frames_of(vector)


@each("vector", kind("encode_error"))
def test_what_does_not_fit_is_not_written(vector: dict[str, Any]) -> None:
    with pytest.raises(BadFrame):
        encode(command_of(vector["decoded"]))


def test_extra_frames_are_flagged_with_the_command_in_front_of_them() -> None:
    with pytest.raises(ExtraFrames) as caught:
        decode([b"\xaa\xa8\x02", b"extra", b""])
    assert caught.value.command == wire.Ping()
    assert "Ping with 2 extra frames" in str(caught.value)


def test_a_nul_is_not_written_and_ends_a_string_that_is_read() -> None:
    with pytest.raises(BadFrame, match="NUL"):
        encode(wire.StreamWrite(b"a\0b"))
    assert decode([b"\xaa\xa8\x05\x03a\0b"]) == wire.StreamWrite(b"a")
    assert decode([b"\xaa\xa8\x05\x01\0tail"]) == wire.StreamWrite(b"", b"tail")


def test_limits_of_strings_and_numbers() -> None:
    name = bytes(range(1, 256))
    assert decode(encode(wire.StreamWrite(name))) == wire.StreamWrite(name)
    assert decode(encode(wire.Credit(65535))) == wire.Credit(65535)
    for bad in (wire.Credit(-1), wire.MailboxSend(b"a", b"s", timeout=2**32), wire.Ok(code=2**16)):
        with pytest.raises(BadFrame, match="does not fit"):
            encode(bad)


def test_the_short_way_to_a_delivery_writes_the_same_frame() -> None:
    for stream, sender, subject in ((b"st", b"", b"t"), (b"s" * 255, b"n" * 255, b"\xff" * 255)):
        assert [wire.deliver_frame(stream, sender, subject)] == encode(wire.StreamDeliver(stream, sender, subject))


def agree(frames: list[bytes]) -> None:
    subject = wire.subject_of_send(frames)
    if subject is not None:
        assert decode(frames) == wire.StreamSend(subject, frames[1:])


def test_the_short_way_to_a_subject_says_the_same_or_nothing() -> None:
    for subject in (b"", b"temp.moscow", b"\xff" * 255):
        frames = encode(wire.StreamSend(subject, [b"x"]))
        assert wire.subject_of_send(frames) == subject
        for other in ([], [frames[0][:-1]], [b""], [frames[0] + b"trailing"], encode(wire.StreamWrite(subject))):
            agree(other)
    assert wire.subject_of_send([b"\xaa\xa8\x07\x03a\0b"]) is None
    assert wire.subject_of_send([b"\xaa\xa8\x07"]) is None


STRINGS = st.binary(max_size=255).map(lambda b: b.replace(b"\0", b"0"))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "s": STRINGS, "2": st.integers(0, 2**16 - 1), "4": st.integers(0, 2**32 - 1)
}  # fmt: skip


@st.composite
def commands(draw: st.DrawFn) -> Command:
    cls: Any = wire.COMMANDS[draw(st.integers(1, 18))]
    values = {name: draw(VALUES[kind]) for name, kind in cls.layout}
    if cls.has_content:
        values["content"] = draw(st.lists(st.binary(max_size=20), max_size=4))
    return cls(**values, trailing=draw(st.binary(max_size=20)))  # type: ignore[no-any-return]


@given(commands())
def test_any_command_survives_the_wire(command: Command) -> None:
    assert decode(encode(command)) == command


@st.composite
def mutated(draw: st.DrawFn) -> list[bytes]:
    frames = [bytearray(f) for f in encode(draw(commands()))]
    frame = frames[draw(st.integers(0, len(frames) - 1))]
    for _ in range(draw(st.integers(1, 3))):
        if frame:
            frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
    return [bytes(f) for f in frames]


def refused_or_read(frames: list[bytes]) -> None:
    try:
        command = decode(frames)
    except BadFrame:
        assert wire.subject_of_send(frames) is None
        return
    assert isinstance(command, Command)
    agree(frames)


@examples(500)
@given(st.one_of(st.lists(st.binary(max_size=60), max_size=4), mutated()))
def test_any_frames_are_read_or_refused(frames: list[bytes]) -> None:
    refused_or_read(frames)


@given(st.integers(0, 255), st.binary(max_size=60))
def test_any_octets_behind_a_signature_are_read_or_refused(number: int, rest: bytes) -> None:
    refused_or_read([wire.SIGNATURE + bytes([number]) + rest])
