"""GIOP: recorded messages round-trip, and invalid messages are refused with limited memory."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import MamaError
from mama_spark.tango.errors import DevFailed, SystemException
from mama_spark.tango.giop import messages as giop
from mama_spark.tango.giop.cdr import CdrError, CdrReader, CdrWriter
from mama_spark.tango.giop.messages import (
    CancelRequest,
    CloseConnection,
    Context,
    GiopMessage,
    GiopReply,
    GiopRequest,
    LocateReply,
    LocateRequest,
    LocateStatus,
    MessageAssembler,
    MessageError,
    ReplyStatus,
    decode,
    encode,
)
from mama_spark.tango.giop.typecode import read_any, write_any
from mama_spark.tango.idl import calls
from mama_spark.tango.idl.calls import Forwarded, Operation

from tests.support.memory import peak_of
from tests.support.tables import each
from tests.support.tango import plain_values
from tests.support.tango.plain_values import attribute_value
from tests.support.tiers import EXPLORE
from tests.support.vectors import vectors

VECTORS = vectors("tango")
GOOD = [v for v in VECTORS if v["kind"] == "giop"]
BAD = [v for v in VECTORS if v["kind"] == "bad" and v["layer"] == "giop"]
EVERY = pytest.mark.parametrize("vector", GOOD, ids=lambda v: v["name"])


class Body(NamedTuple):
    """How the arguments and the result of an operation are read and written."""

    read: Callable[[CdrReader], Any] | None
    write: Callable[[CdrWriter, Any], None] | None
    read_result: Callable[[CdrReader], Any]
    write_result: Callable[[CdrWriter, Any], None]


def _command(name: str) -> Body:
    return Body(
        lambda r: calls.read_command(r, name), lambda w, v: calls.write_command(w, v, name),
        read_any, lambda w, v: write_any(w, *v),
    )  # fmt: skip


READ = Operation.READ_5
BODIES: dict[str, Body] = {
    Operation.IS_A: Body(CdrReader.string, CdrWriter.string, CdrReader.boolean, CdrWriter.boolean),
    Operation.NON_EXISTENT: Body(None, None, CdrReader.boolean, CdrWriter.boolean),
    Operation.INFO: Body(None, None, calls.INFO.read, calls.INFO.write),
    Operation.ADM_NAME: Body(None, None, CdrReader.string, CdrWriter.string),
    READ: Body(
        lambda r: calls.read_reading(r, READ), lambda w, v: calls.write_reading(w, v, READ),
        lambda r: calls.read_values(r, READ), lambda w, v: calls.write_values(w, v, READ),
    ),
    **{name: _command(name) for name in (Operation.COMMAND_2, Operation.COMMAND_4)},
}  # fmt: skip


def operation_of(vector: dict[str, Any]) -> str:
    """A reply does not contain the operation; the name of the vector does."""
    named = (operation for operation in BODIES if operation.strip("_").removeprefix("get_") in vector["name"])
    return vector["decoded"].get("operation") or next(named, Operation.COMMAND_4)


def understand(data: bytes, operation: str) -> tuple[GiopMessage, Any, CdrReader]:
    """A message and the values of its body."""
    message, reader = decode(data)
    value: Any = None
    if isinstance(message, GiopRequest) and message.operation in BODIES:
        read = BODIES[message.operation].read
        value = read and read(reader)
    elif isinstance(message, GiopReply):
        try:
            calls.check(message, reader)
            value = BODIES.get(operation, BODIES[Operation.COMMAND_4]).read_result(reader)
        except DevFailed as error:
            value = error
    return message, value, reader


def express(message: GiopMessage, value: Any, operation: str) -> bytes:
    """The inverse."""
    write: Callable[[CdrWriter, Any], None] | None = None
    if isinstance(message, GiopRequest):
        write = BODIES[operation].write
    elif isinstance(message, GiopReply):
        write = calls.write_failure if isinstance(value, DevFailed) else BODIES[operation].write_result
    if write is None:
        return encode(message)
    body = write
    return encode(message, lambda writer: body(writer, value))


def plain(message: GiopMessage, value: Any) -> dict[str, Any]:
    """The value in the form of the vectors."""
    told: dict[str, Any] = {"giop": f"1.{message.minor}", "endian": "little" if message.little else "big"}
    told |= {"message": type(message).__name__.removeprefix("Giop"), "request_id": message.id}  # type: ignore[attr-defined]
    if isinstance(message, GiopRequest):
        told |= {"response_expected": message.wants_reply, "object_key": message.key.decode()}
        told |= {"operation": message.operation}
        if isinstance(value, calls.CommandCall):
            told |= {"command": value.name, "argin": value.argin}
        elif isinstance(value, calls.ReadCall):
            told |= {"names": list(value.names)}
        elif isinstance(value, str):
            told |= {"type_id": value}
        if isinstance(value, calls.CommandCall | calls.ReadCall):
            told |= {"source": value.source}
            if value.client:
                told |= {"client": {"kind": value.client.language.name, "pid": value.client.pid}}
    elif isinstance(message, GiopReply):
        told |= {"reply_status": message.status.name, **plain_result(value)}
    elif isinstance(message, LocateRequest):
        told |= {"object_key": message.key.decode()}
    elif isinstance(message, LocateReply):
        told |= {"locate_status": message.status}
    return told


def plain_result(value: Any) -> dict[str, Any]:
    if isinstance(value, DevFailed):
        return {"exception": "IDL:Tango/DevFailed:1.0", "errors": plain_values.plain(value.errors)}
    if isinstance(value, calls.DeviceInfo):
        names = ("dev_class", "server_id", "server_host", "server_version", "doc_url")
        return {"result": {name: getattr(value, name) for name in names}}
    if isinstance(value, tuple):
        _, found = value
        return {"result": None} if found is None else {"longs": found[0].tolist(), "strings": found[1]}
    return {"result": [attribute_value(v) for v in value] if isinstance(value, list) else value}


@pytest.mark.spec("TG-26-TG-28")
@EVERY
def test_every_recorded_message_is_read_to_its_last_octet(vector: dict[str, Any]) -> None:
    message, value, reader = understand(bytes.fromhex(vector["hex"]), operation_of(vector))
    assert plain(message, value) == vector["decoded"]
    reader.finish()


@EVERY
def test_every_recorded_message_is_written_as_it_was(vector: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All octets but the padding, whose content is undefined: the octets that do not change with another filling."""
    data, operation = bytes.fromhex(vector["hex"]), operation_of(vector)
    message, value, _ = understand(data, operation)
    written = express(message, value, operation)

    def fill(writer: CdrWriter, size: int) -> None:
        writer._data += b"\xff" * ((writer._base - len(writer._data)) % size)

    monkeypatch.setattr(CdrWriter, "align", fill)
    filled = express(message, value, operation)
    assert len(written) == len(filled) == len(data)
    assert all(a == b for a, b, c in zip(data, written, filled, strict=True) if b == c)


@each("vector", BAD)
def test_invalid_messages_are_refused(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])

    def as_a_stream() -> None:
        for message in split(data, []):
            understand(message, "")

    with pytest.raises(CdrError):
        understand(data, "")
    if vector["name"] != "bad_giop_size_small":  # a stream shows that only at the next message
        with pytest.raises(CdrError):
            as_a_stream()


def sized(data: bytes) -> bytes:
    """The size in the header fits, so that the truncation is found in the body."""
    return data[:8] + (len(data) - giop.HEADER).to_bytes(4, "little") + data[12:]


@EVERY
def test_every_cut_is_refused(vector: dict[str, Any]) -> None:
    data, operation = bytes.fromhex(vector["hex"]), operation_of(vector)
    for end in range(len(data)):
        with pytest.raises(CdrError):
            understand(data[:end], operation)
        if end >= giop.HEADER:
            try:
                _, value, _ = understand(sized(data[:end]), operation)
            except CdrError:
                continue
            assert value is None, end


@EVERY
def test_every_changed_bit_gives_a_value_or_an_error_of_ours(vector: dict[str, Any]) -> None:
    data, operation = bytearray.fromhex(vector["hex"]), operation_of(vector)
    for n in range(0, len(data) * 8, 1 if EXPLORE else 3):
        data[n // 8] ^= 1 << n % 8
        with contextlib.suppress(CdrError, Forwarded, DevFailed, SystemException):
            understand(bytes(data), operation)
        data[n // 8] ^= 1 << n % 8


def understand_large_counts() -> None:
    for vector in GOOD:
        data, operation = bytes.fromhex(vector["hex"]), operation_of(vector)
        for at in range(12, len(data) - 3, 4):
            for number in (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\0\0\1\0"):
                with contextlib.suppress(MamaError):
                    understand(data[:at] + number + data[at + 4 :], operation)
            gc.collect()  # errors and their frames, of which thousands would wait


def test_no_count_makes_much_of_little() -> None:
    assert peak_of(understand_large_counts).python < 50_000, "10 kB; the smallest of the counts is 65,536"


# --- all messages, all versions ------------------------------------------------------------------------------

IDS = st.integers(0, 2**32 - 1)
KEYS = st.binary(max_size=20)
NAMES = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=12)
CONTEXTS = st.lists(st.builds(Context, IDS, KEYS), max_size=3).map(tuple)
VERSION = {"minor": st.integers(0, 2), "little": st.booleans()}
MESSAGES: st.SearchStrategy[GiopMessage] = st.one_of(
    st.builds(GiopRequest, id=IDS, key=KEYS, operation=NAMES, wants_reply=st.booleans(), contexts=CONTEXTS, **VERSION),
    st.builds(GiopReply, id=IDS, status=st.sampled_from(ReplyStatus), contexts=CONTEXTS, **VERSION),
    st.builds(CancelRequest, id=IDS, **VERSION),
    st.builds(LocateRequest, id=IDS, key=KEYS, **VERSION),
    st.builds(LocateReply, id=IDS, status=st.sampled_from(LocateStatus), **VERSION),
    st.builds(CloseConnection, **VERSION),
    st.builds(MessageError, **VERSION),
)


@given(MESSAGES, st.none() | st.binary(min_size=1, max_size=40))
def test_all_messages_come_back_in_every_version_and_order(message: GiopMessage, body: bytes | None) -> None:
    data = encode(message, None if body is None else lambda writer: writer.raw(body))
    found, reader = decode(data)
    assert found == message
    has_gap = message.minor == 2 and isinstance(message, CancelRequest | LocateRequest | CloseConnection | MessageError)
    left = reader.raw(reader.left)
    assert left.lstrip(b"\0") == (body or b"").lstrip(b"\0") if has_gap else left == (body or b"")


# --- a stream of messages ------------------------------------------------------------------------------------


def split(data: bytes, cuts: list[int], limit: int = giop.LIMIT) -> list[bytes]:
    assembler, found = MessageAssembler(limit), []
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for begin, end in itertools.pairwise(places):
        assembler.feed(data[begin:end])
        while (message := assembler.next_message()) is not None:
            found.append(message)
    return found


@given(st.lists(MESSAGES, max_size=5), st.lists(st.integers(0, 400), max_size=8))
def test_a_stream_gives_the_same_messages_however_it_is_cut(messages: list[GiopMessage], cuts: list[int]) -> None:
    parts = [encode(message) for message in messages]
    assert split(b"".join(parts), cuts) == parts


def fragments(data: bytes, size: int) -> list[bytes]:
    """A message of GIOP 1.2 in fragments, all but the last one with a size that is a multiple of 8."""
    little = bool(data[6] & 1)
    number = data[12:16]

    def head(flags: int, kind: int, body: bytes) -> bytes:
        return data[:6] + bytes([flags, kind]) + len(body).to_bytes(4, "little" if little else "big") + body

    pieces = [data[at : at + size] for at in range(12, len(data), size)]
    last = len(pieces) - 1
    return [
        head(int(little) | (2 if n < last else 0), data[7] if n == 0 else 7, piece if n == 0 else number + piece)
        for n, piece in enumerate(pieces)
    ]


@given(st.booleans(), st.sampled_from([16, 24, 80]), st.lists(st.integers(0, 900), max_size=8))
def test_fragments_of_several_messages_are_put_together(little: bool, size: int, cuts: list[int]) -> None:
    first = encode(GiopReply(little=little, id=1), lambda writer: writer.octets(bytes(range(200))))
    second = encode(GiopReply(little=little, id=2), lambda writer: writer.octets(b"x" * 100))
    a, b = fragments(first, size), fragments(second, size)
    mixed = [piece for pair in zip(a, [*b, *[b""] * (len(a) - len(b))], strict=True) for piece in pair]
    assert sorted(split(b"".join(mixed), cuts)) == sorted([first, second])


def test_fragments_of_1_1_follow_their_message() -> None:
    first = b"GIOP\1\1\3\1" + (8).to_bytes(4, "little") + bytes(8)
    last = b"GIOP\1\1\1\7" + (4).to_bytes(4, "little") + (3).to_bytes(4, "little")
    (found,) = split(first + last, [])
    assert decode(found)[0] == GiopReply(1, True, id=0, status=ReplyStatus.LOCATION_FORWARD)


@each(
    "data",
    [
        b"GIOP\1\2\1\7" + (4).to_bytes(4, "little") + bytes(4),  # of no message
        b"GIOP\1\2\3\1" + (2).to_bytes(4, "little") + bytes(2),  # without an id
        (b"GIOP\1\2\3\1" + (4).to_bytes(4, "little") + bytes(4)) * 2,  # begun twice
        b"".join(b"GIOP\1\2\3\1" + (4).to_bytes(4, "little") + n.to_bytes(4, "little") for n in range(65)),
        b"GIOP\1\2\3\1" + (900).to_bytes(4, "little") + bytes(900) + (b"GIOP\1\2\3\7\x68\0\0\0" + bytes(104)) * 2,
    ],
)
def test_fragments_that_cannot_be_put_together_are_refused(data: bytes) -> None:
    with pytest.raises(CdrError):
        split(data, [], limit=1000)


def test_a_size_is_refused_before_the_message_is_there() -> None:
    assembler = MessageAssembler(limit=100)
    assembler.feed(b"GIOP\1\2\1\1" + (101).to_bytes(4, "little"))
    with pytest.raises(CdrError, match="limit"):
        assembler.next_message()


@given(st.binary(max_size=80))
def test_any_octets_behind_the_magic_give_messages_or_the_error(data: bytes) -> None:
    assembler = MessageAssembler(limit=1000)
    assembler.feed(b"GIOP\1" + data)
    try:
        while (found := assembler.next_message()) is not None:
            decode(found)
    except CdrError:
        pass
    assert len(assembler._data) <= 85
