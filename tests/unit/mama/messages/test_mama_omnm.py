"""The wire form of messages: round trips over all field types, and decoding of arbitrary bytes."""

from __future__ import annotations

import random
import struct
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.mama.messages import omnm
from mama_spark.mama.messages.field_runs import MOST_RUNS
from mama_spark.mama.messages.msg import FieldType, MamaMsg, MamaPrice, MamaTime
from mama_spark.mama.messages.omnm import BadMessage, decode, encode

from tests.support.memory import peak_of
from tests.support.tables import each
from tests.support.tiers import examples

T: type[FieldType] = FieldType

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
LATIN = st.characters(max_codepoint=255)


def latin(most: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=most)


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


BYTE = st.integers(0, 255)
SCALARS: dict[FieldType, st.SearchStrategy[Any]] = {
    T.BOOL: st.booleans(),
    T.CHAR: LATIN,
    **{T[f"I{bits}"]: integers(bits, True) for bits in (8, 16, 32, 64)},
    **{T[f"U{bits}"]: integers(bits, False) for bits in (8, 16, 32, 64)},
    T.F32: st.floats(width=32, allow_nan=False),
    T.F64: st.floats(allow_nan=False),
    T.TIME: st.builds(MamaTime, integers(64, True), integers(32, False), BYTE, BYTE, latin(14)),
    T.PRICE: st.builds(MamaPrice, st.floats(allow_nan=False), BYTE, latin(3)),
}
STRINGS = st.lists(TEXT, max_size=4).filter(lambda strings: not strings or strings[-1] != "")
VALUES: dict[FieldType, st.SearchStrategy[Any]] = {
    **SCALARS,
    **{T[f"VECTOR_{t.name}"]: st.lists(values, max_size=4) for t, values in SCALARS.items()},
    T.STRING: TEXT,
    T.VECTOR_STRING: STRINGS,
    T.OPAQUE: st.binary(max_size=12),
    T.COLLECTION: st.binary(max_size=12),
    T.QUANTITY: integers(32, False),
}
IDS = st.tuples(TEXT, st.integers(0, 65535)).filter(any)


def built(fields: list[tuple[tuple[str, int], tuple[FieldType, Any]]]) -> MamaMsg:
    msg = MamaMsg()
    for (name, fid), (field_type, value) in fields:
        msg.add(field_type, name, fid, value)
    return msg


def typed(field_type: FieldType, values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[FieldType, Any]]:
    return values.map(lambda value: (field_type, value))


FLAT = st.one_of(*(typed(t, values) for t, values in VALUES.items()))
MESSAGES = st.recursive(
    st.lists(st.tuples(IDS, FLAT), max_size=5).map(built),
    lambda inner: st.lists(
        st.tuples(IDS, FLAT | typed(T.MSG, inner) | typed(T.VECTOR_MSG, st.lists(inner, max_size=3))), max_size=4
    ).map(built),
    max_leaves=4,
)


@each("field_type", set(T) - {T.UNKNOWN, T.MSG, T.VECTOR_MSG})
def test_each_type_round_trips(field_type: FieldType) -> None:
    @examples(40)
    @given(IDS, VALUES[field_type])
    def check(identity: tuple[str, int], value: Any) -> None:
        msg = built([(identity, (field_type, value))])
        data = encode(msg)
        assert decode(data) == msg
        assert encode(decode(data)) == data

    check()


@examples(150)
@given(MESSAGES)
def test_any_message_round_trips(msg: MamaMsg) -> None:
    data = encode(msg)
    assert decode(data) == decode(memoryview(data)) == decode(bytearray(data)) == msg
    assert encode(decode(data)) == data


def read_or_refused(data: bytes) -> None:
    try:
        msg = decode(data)
    except BadMessage as e:
        assert e.info  # noqa: PT017
    else:
        assert decode(encode(msg)).as_dict() == msg.as_dict()


@examples(300)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    read_or_refused(data)
    read_or_refused(b"O\x01\x00" + data)


def decode_announced_lengths() -> None:
    types = [t for t in T if t in (T.MSG, T.OPAQUE, T.COLLECTION) or "VECTOR" in t.name]
    for field_type, length in product(types, (2**32 - 1, 2**31, 2**24)):
        with pytest.raises(BadMessage):
            decode(b"O\x01\x00" + bytes([field_type, 1, 0]) + b"a\0" + struct.pack("<I", length) + bytes(100))


def test_an_announced_length_allocates_nothing() -> None:
    assert peak_of(decode_announced_lengths).python < 100_000, "15 kB; the smallest length is 16 MB"


@each(
    "inner",
    [
        b"O\1\2",  # truncated header
        b"O\1\0\x12\1\0a",  # truncated name
        b"O\1\0\x12\1\0a\0\1\0",  # truncated number
        b"O\1\0\x08\1\0a\0te",  # truncated text
        b"O\1\0\x07\1\0a\0\4\0\0\0te",  # announces more bytes than follow
        b"O\1\0\x07\1\0a\0\4\0", b"O\1\0\x0a\1\0a\0", b"O\1\0\x1a\1\0a\0" + bytes(39),
    ],
)  # fmt: skip
def test_a_nested_message_ends_at_its_length(inner: bytes) -> None:
    """Bytes after it in the outer message are not part of it."""
    rest = b"\x08\2\0b\0text\0" + b"\x1a\3\0c\0" + bytes(40)
    assert decode(b"O\1\0" + rest).get("b") == "text"
    msg = struct.pack("<I", len(inner)) + inner
    with pytest.raises(BadMessage):
        decode(b"O\1\0\1\1\0m\0" + msg + rest)
    with pytest.raises(BadMessage):
        decode(b"O\1\0\x2f\1\0m\0" + struct.pack("<I", len(msg)) + msg + rest)


def test_a_known_field_that_its_nested_message_cuts_is_refused() -> None:
    """Its layout is remembered from a whole one, and the outer message has enough bytes for it."""
    whole = encode(built([(("cut", 9), (FieldType.I64, 5))]))
    assert decode(whole).get("cut") == 5
    with pytest.raises(BadMessage):
        decode(b"O\1\0\1\1\0m\0" + struct.pack("<I", len(whole) - 1) + whole[:-1] + b"\x08\2\0b\0text\0")


WIDTHS = {"16": 2, "32": 4, "64": 8}


@each("scalar", [t for t in SCALARS if t not in (T.BOOL, T.CHAR, T.I8, T.U8)])
def test_a_vector_holds_whole_elements(scalar: FieldType) -> None:
    """Otherwise its last element would extend into the next field."""
    width = {T.TIME: 40, T.PRICE: 24}.get(scalar) or WIDTHS[scalar.name[1:]]
    head = encode(built([(("v", 1), (T[f"VECTOR_{scalar.name}"], []))]))[:-4]
    after = encode(built([(("b", 2), (T.STRING, "text"))]))[3:]
    for size in range(2 * width + 1):
        data = head + struct.pack("<I", size) + bytes(size) + after
        if size % width:
            with pytest.raises(BadMessage, match="whole number of elements"):
                decode(data)
        else:
            assert (len(decode(data).get("v")), decode(data).get("b")) == (size // width, "text")


@pytest.mark.parametrize("field_type", [T.MSG, T.VECTOR_MSG])
def test_depth_is_bounded(field_type: FieldType) -> None:
    def nested(levels: int) -> bytes:
        data = b"O\x01\x00"
        for _ in range(levels - 1):
            data = struct.pack("<I", len(data)) + data
            if field_type is T.VECTOR_MSG:
                data = struct.pack("<I", len(data)) + data
            data = b"O\x01\x00" + bytes([field_type, 1, 0, 0]) + data
        return data

    assert encode(decode(nested(16))) == nested(16)
    for levels in (17, 20_000):
        with pytest.raises(BadMessage, match="deeper than 16"):
            decode(nested(levels))


def test_text_that_is_no_utf8_is_latin1() -> None:
    assert decode(b"O\x01\x00\x08\x01\x00a\0\xff\0").get("a") == "\xff"
    assert decode(b"O\x01\x00\x08\x01\x00\xff\0a\0").get("\xff") == "a"


@each(
    ("body", "strings"),
    [
        (b"", ()), (b"\0", ()), (b"a\0", ("a",)), (b"\0a\0", ("", "a")), (b"a\0\0\0", ("a",)),
        (b"a\0\0b\0\0", ("a", "", "b")), (b"a\0\0xyz", ("a",)), (b"\xff\0\xc3\xbc\0", ("\xff", "\xfc")),
    ],
)  # fmt: skip
def test_a_vector_of_strings_ends_at_the_last_nul(body: bytes, strings: tuple[str, ...]) -> None:
    """The C library leaves old lengths and NULs behind a shortened one."""
    field = b"\x2e\x01\x00v\0" + len(body).to_bytes(4, "little") + body
    msg = decode(b"O\x01\x00" + field + b"\x0f\x02\x00n\0\x07")
    assert (msg.get("v"), msg.get("n")) == (strings, 7)


def test_fields_without_name_and_fid_are_refused() -> None:
    with pytest.raises(BadMessage, match="neither name nor fid"):
        decode(b"O\x01\x00\x0f\x00\x00\0\x01")


# --- runs of fields: they make reading faster and change nothing of what is read ---

#: Fields whose heads begin alike, differ in type, or have no name.
FIELDS = [
    (FieldType.U8, "a", 1, 1),
    (FieldType.U8, "a", 2, 2),
    (FieldType.U32, "a", 1, 3),
    (FieldType.F64, "ab", 1, 4.5),
    (FieldType.STRING, "a", 1, "text"),
    (FieldType.STRING, "", 7, ""),
    (FieldType.CHAR, "", 1, "x"),
    (FieldType.VECTOR_U16, "v", 3, [1, 2]),
    (FieldType.I64, "n" * 80, 9, -1),
]


def message(places: list[int]) -> MamaMsg:
    msg = MamaMsg()
    for place in places:
        msg.add(*FIELDS[place])
    return msg


@examples(200)
@given(st.lists(st.lists(st.integers(0, len(FIELDS) - 1), max_size=12), max_size=12))
def test_messages_that_differ_anywhere_are_read_one_after_the_other(layouts: list[list[int]]) -> None:
    for places in layouts:
        assert omnm.decode(omnm.encode(message(places))) == message(places)


def test_heads_of_a_hostile_sender_are_not_all_remembered() -> None:
    chance = random.Random(1)
    for n in range(3 * MOST_RUNS):
        msg = MamaMsg()
        msg.add(FieldType.U8, f"hostile{n}", chance.randrange(65536), 1)
        msg.add(FieldType.STRING, f"{n}", 1, "")
        omnm.decode(omnm.encode(msg))
    assert len(omnm.RUNS) <= MOST_RUNS
