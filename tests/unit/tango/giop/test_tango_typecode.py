"""The ``any`` of commands: every type of Tango round-trips, and small data never takes much memory."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.tango.giop.cdr import CdrError, CdrReader, CdrWriter
from mama_spark.tango.giop.typecode import (
    LONGS,
    LONGS_AND_STRINGS,
    STRING,
    STRINGS,
    VOID,
    TypeCode,
    TypeKind,
    read_any,
    sequence_of,
    write_any,
    write_typecode,
)

from tests.support.memory import peak_of
from tests.support.tables import each

LATIN = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=12)
STATE = TypeCode(TypeKind.ENUM, "IDL:Tango/DevState:1.0", "DevState", ("ON", "OFF"))
CHARS = TypeCode(
    TypeKind.ALIAS,
    "IDL:Tango/DevVarCharArray:1.0",
    "DevVarCharArray",
    (),
    (TypeCode(TypeKind.SEQUENCE, members=(TypeCode(TypeKind.OCTET),)),),
)
ENCODED = TypeCode(
    TypeKind.STRUCT, "IDL:Tango/DevEncoded:1.0", "DevEncoded", ("encoded_format", "encoded_data"), (STRING, CHARS)
)
ANYS: dict[str, tuple[TypeCode, st.SearchStrategy[Any]]] = {
    "void": (VOID, st.none()),
    "void of other senders": (TypeCode(TypeKind.VOID), st.none()),
    "DevString": (STRING, LATIN),
    "DevVarStringArray": (STRINGS, st.lists(LATIN, max_size=5)),
    "DevShort": (TypeCode(TypeKind.SHORT), st.integers(-(2**15), 2**15 - 1)),
    "DevLong": (TypeCode(TypeKind.LONG), st.integers(-(2**31), 2**31 - 1)),
    "DevULong64": (TypeCode(TypeKind.ULONGLONG), st.integers(0, 2**64 - 1)),
    "DevBoolean": (TypeCode(TypeKind.BOOLEAN), st.booleans()),
    "DevDouble": (TypeCode(TypeKind.DOUBLE), st.floats(allow_nan=False)),
    "DevState": (STATE, st.integers(0, 13)),
    "DevEncoded": (ENCODED, st.tuples(LATIN, st.binary(max_size=20))),
    "DevVarCharArray": (CHARS, st.binary(max_size=20)),
}


def written(code: TypeCode, value: Any, little: bool, head: int = 0) -> bytes:
    writer = CdrWriter(little, bytes(head))
    write_any(writer, code, value)
    return writer.getvalue()


@given(st.data(), st.sampled_from(sorted(ANYS)), st.booleans(), st.integers(0, 7))
def test_every_type_comes_back_with_its_value(data: st.DataObject, name: str, little: bool, head: int) -> None:
    code, values = ANYS[name]
    value = data.draw(values)
    reader = CdrReader(written(code, value, little, head), little, head)
    assert read_any(reader) == (code, value)
    reader.finish()


@pytest.mark.spec("TG-10")
@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6), st.lists(LATIN, max_size=4), st.booleans())
def test_numbers_and_strings_come_back_together(numbers: list[int], texts: list[str], little: bool) -> None:
    """DevVarLongStringArray, the form of SUBSCRIPTION_INFO."""
    reader = CdrReader(written(LONGS_AND_STRINGS, (numbers, texts), little), little)
    code, (found, strings) = read_any(reader)
    assert code == LONGS_AND_STRINGS
    assert (found.tolist(), strings) == (numbers, texts)
    reader.finish()


@pytest.mark.parametrize("little", [True, False])
def test_sequences_of_numbers_are_arrays(little: bool) -> None:
    doubles = sequence_of("DevVarDoubleArray", TypeCode(TypeKind.DOUBLE))
    for code, dtype in ((LONGS, "i4"), (doubles, "f8")):
        _, found = read_any(CdrReader(written(code, [1, 2], little), little))
        np.testing.assert_array_equal(found, np.array([1, 2], dtype))


@each(
    ("code", "value"),
    [
        (STRINGS, [1]), (STRING, 5), (STRING, ["a"]), (LONGS, ["a"]), (LONGS, [2**31]), (LONGS_AND_STRINGS, ([1],)),
        (LONGS_AND_STRINGS, 5), (TypeCode(TypeKind.LONG), None),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(code: TypeCode, value: Any) -> None:
    with pytest.raises(CdrError):
        written(code, value, True)


def nested(depth: int) -> TypeCode:
    code = STRING
    for _ in range(depth):
        code = TypeCode(TypeKind.ALIAS, "", "", (), (code,))
    return code


@each(
    "code",
    [
        nested(9),
        TypeCode(TypeKind.SEQUENCE, members=(VOID,)),
        TypeCode(TypeKind.SEQUENCE, members=(TypeCode(TypeKind.STRUCT),)),
        TypeCode(TypeKind.SEQUENCE, members=(STRINGS,)),
        TypeCode(TypeKind.STRUCT, names=("a",), members=(VOID,)),
    ],
)
def test_types_that_no_command_has_are_refused(code: TypeCode) -> None:
    writer = CdrWriter(True)
    write_typecode(writer, code)
    with pytest.raises(CdrError):
        read_any(CdrReader(writer.getvalue() + bytes(64), True))


@each("kind", [11, 12, 13, 14, 16, 20, 22, 25, 0xFFFFFFFF])
def test_kinds_that_tango_has_not_are_refused(kind: int) -> None:
    """0xFFFFFFFF is an indirection: the TypeCode of a recursive type."""
    with pytest.raises(CdrError):
        read_any(CdrReader(kind.to_bytes(4, "little") + bytes(64), True))


def test_a_value_cannot_extend_beyond_its_type() -> None:
    data = bytearray(written(STRINGS, ["a"], True))
    data[4] -= 4  # the type says that it is shorter than it is
    with pytest.raises(CdrError):
        read_any(CdrReader(data, True))


@given(st.sampled_from(sorted(ANYS)), st.data())
def test_every_changed_octet_gives_a_value_or_the_error(name: str, data: st.DataObject) -> None:
    code, values = ANYS[name]
    octets = bytearray(written(code, data.draw(values), True))
    octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CdrError):
        read_any(CdrReader(octets, True))


#: One value of each type that has more than one size or structure.
SIZED: tuple[tuple[TypeCode, Any], ...] = (
    (STRING, "abc"), (STRINGS, ["a", "bc"]), (STATE, 3), (ENCODED, ("a", b"bc")), (CHARS, b"abc"),
)  # fmt: skip


def read_large_counts() -> None:
    for code, value in SIZED:
        good = written(code, value, True)
        for at in range(0, len(good) - 3, 4):
            for number in (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\0\0\4\0"):
                with contextlib.suppress(CdrError):
                    read_any(CdrReader(good[:at] + number + good[at + 4 :], True))


def test_no_count_in_a_type_or_a_value_makes_much_of_little() -> None:
    assert peak_of(read_large_counts).python < 100_000, "the smallest of the counts is 262,144"
