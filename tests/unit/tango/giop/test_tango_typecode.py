"""The ``any`` of commands: every type of Tango round-trips, and small data never takes much memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.tango.giop import typecode
from mama_spark.tango.giop.cdr import CdrError, CdrReader, CdrWriter
from mama_spark.tango.giop.typecode import LONGS, LONGS_AND_STRINGS, STRING, STRINGS, VOID, TypeCode, TypeKind, read_any

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
    typecode.write_any(writer, code, value)
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
    typecode.write_typecode(writer, code)
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
