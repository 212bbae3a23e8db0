"""CDR: values round-trip, and invalid data is refused before memory is allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.tango.giop.cdr import CdrError, CdrReader, CdrWriter

from tests.support.memory import peak_of
from tests.support.tables import each

LATIN = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=20)
NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "octet": st.integers(0, 255), "boolean": st.booleans(), "short": st.integers(-(2**15), 2**15 - 1),
    "ushort": st.integers(0, 2**16 - 1), "long": st.integers(-(2**31), 2**31 - 1), "ulong": st.integers(0, 2**32 - 1),
    "longlong": st.integers(-(2**63), 2**63 - 1), "ulonglong": st.integers(0, 2**64 - 1),
    "float": st.floats(width=32, allow_nan=False), "double": st.floats(allow_nan=False), "string": LATIN,
    "octets": st.binary(max_size=20), "strings": st.lists(LATIN, max_size=4),
}  # fmt: skip
VALUES = st.lists(st.one_of(*(st.tuples(st.just(name), values) for name, values in NUMBERS.items())), max_size=12)
DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
ORDERS = pytest.mark.parametrize("little", [True, False], ids=["little", "big"])


@given(VALUES, st.booleans(), st.integers(0, 9), st.integers(0, 9))
def test_what_is_written_is_read(values: list[tuple[str, Any]], little: bool, base: int, more: int) -> None:
    writer = CdrWriter(little, bytes(base + more), base)
    for name, value in values:
        getattr(writer, name)(value)
    for data in (writer.getvalue(), bytearray(writer.getvalue()), memoryview(writer.getvalue())):
        reader = CdrReader(data, little, base + more, base)
        assert [(name, getattr(reader, name)()) for name, _ in values] == values
        reader.finish()


@given(VALUES, st.booleans())
def test_every_cut_is_an_error_and_nothing_else(values: list[tuple[str, Any]], little: bool) -> None:
    writer = CdrWriter(little)
    for name, value in values:
        getattr(writer, name)(value)
    data = writer.getvalue()

    def read_all(reader: CdrReader) -> None:
        for name, _ in values:
            getattr(reader, name)()

    for end in range(len(data)):
        with pytest.raises(CdrError):
            read_all(CdrReader(data[:end], little))


@ORDERS
@pytest.mark.parametrize("code", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_sequences_of_numbers_are_arrays_of_the_machines_order(code: str, count: int, little: bool) -> None:
    values = (np.arange(count) % 2).astype(code) if code == "?" else np.arange(count).astype(code)
    writer = CdrWriter(little)
    writer.octet(7)  # so that there is a gap before the elements
    writer.array(values, code)
    writer.octet(8)
    reader = CdrReader(writer.getvalue(), little)
    assert reader.octet() == 7
    found = reader.array(code)
    assert reader.octet() == 8
    reader.finish()
    assert found.dtype == np.dtype(code)
    np.testing.assert_array_equal(found, values)
    assert not found.flags.writeable


def test_a_sequence_in_the_machines_order_is_not_copied() -> None:
    little = np.dtype("i4").newbyteorder("<") == np.dtype("i4")
    writer = CdrWriter(little)
    writer.array(np.arange(100), "i4")
    data = bytearray(writer.getvalue())
    found = CdrReader(data, little).array("i4")
    data[4:8] = (77).to_bytes(4, "little" if little else "big")
    assert found[0] == 77


@ORDERS
def test_an_empty_sequence_has_no_padding(little: bool) -> None:
    writer = CdrWriter(little)
    writer.array([], "f8")
    writer.octet(1)
    assert len(writer) == 5
    reader = CdrReader(writer.getvalue(), little)
    assert len(reader.array("f8")) == 0
    assert reader.octet() == 1


@ORDERS
def test_padding_is_written_as_zeros_and_read_as_anything(little: bool) -> None:
    writer = CdrWriter(little)
    writer.octet(1)
    writer.long(5)
    data = bytearray(writer.getvalue())
    assert data[1:4] == b"\0\0\0"
    data[1:4] = b"\xde\xad\xbe"
    reader = CdrReader(data, little)
    assert (reader.octet(), reader.long()) == (1, 5)


@ORDERS
def test_an_encapsulation_has_its_own_byte_order_and_alignment(little: bool) -> None:
    inner = CdrWriter.inner(not little)
    inner.long(-5)
    writer = CdrWriter(little)
    writer.octet(9)
    writer.encapsulation(inner)
    writer.octet(3)
    for _ in range(8):
        writer.ulong(99)
    reader = CdrReader(writer.getvalue(), little)
    assert reader.octet() == 9
    wrapped = reader.encapsulation()
    assert (wrapped.little, wrapped.long(), reader.octet()) == (not little, -5, 3)
    wrapped.finish()
    for read in (CdrReader.octet, CdrReader.ulong, CdrReader.double, CdrReader.string, CdrReader.octets):
        with pytest.raises(CdrError):
            read(wrapped)  # nothing behind its end


HOSTILE: dict[str, tuple[bytes, Callable[[CdrReader], Any]]] = {
    "boolean of 2": (b"\2", CdrReader.boolean),
    "string of length 0": (bytes(4), CdrReader.string),
    "string without NUL": (b"\2\0\0\0ab", CdrReader.string),
    "string with NUL inside": (b"\3\0\0\0\0a\0", CdrReader.string),
    "string beyond the end": (b"\xff\xff\xff\x7fa\0", CdrReader.string),
    "octets beyond the end": (b"\xff\xff\xff\xff", CdrReader.octets),
    "strings beyond the end": (b"\xff\xff\xff\xff" + bytes(100), CdrReader.strings),
    "array beyond the end": (b"\xff\xff\xff\x1f" + bytes(100), lambda reader: reader.array("f8")),
    "array that its padding takes beyond the end": (b"\1\0\0\0" + bytes(8), lambda reader: reader.array("f8")),
    "array of booleans of 2": (b"\1\0\0\0\2", lambda reader: reader.array("?")),
    "encapsulation without an order": (bytes(4), CdrReader.encapsulation),
    "encapsulation of order 2": (b"\1\0\0\0\2", CdrReader.encapsulation),
    "encapsulation beyond the end": (b"\2\0\0\0\1", CdrReader.encapsulation),
    "raw beyond the end": (b"ab", lambda reader: reader.raw(3)),
    "raw of less than nothing": (b"ab", lambda reader: reader.raw(-1)),
    "octets left": (b"a", CdrReader.finish),
}


@each("name", HOSTILE)
def test_octets_that_are_no_value_are_refused(name: str) -> None:
    data, read = HOSTILE[name]
    with pytest.raises(CdrError):
        read(CdrReader(data, True))


def read_a_large_count() -> None:
    for read in (CdrReader.octets, CdrReader.strings, CdrReader.string, lambda r: r.array("f8"), CdrReader.count):
        with pytest.raises(CdrError):
            read(CdrReader(b"\xff\xff\xff\x7f" + bytes(1000), True))


def test_counts_are_not_believed() -> None:
    assert peak_of(read_a_large_count).python < 20_000, "5 kB; 2 GB are announced"


@each(
    ("name", "value"),
    [
        ("octet", 256), ("octet", -1), ("octet", "a"), ("short", 2**15), ("ushort", -1), ("long", 2**31),
        ("long", 1.5), ("ulong", -1), ("longlong", 2**63), ("ulonglong", 2**64), ("float", 1e300), ("double", "x"),
        ("string", "€"), ("string", "a\0b"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(name: str, value: Any) -> None:
    with pytest.raises(CdrError):
        getattr(CdrWriter(True), name)(value)


@each(
    ("values", "code"),
    [
        ([300], "u1"), ([-1], "u4"), ([1.5], "i4"), (["a"], "f8"), ([2**70], "i8"), ([2], "?"), ([2**63], "i8"),
        ([1e300], "f4"), ([[1], [1, 2]], "i4"),
    ],
)  # fmt: skip
def test_arrays_are_not_changed_to_fit(values: list[Any], code: str) -> None:
    with pytest.raises(CdrError):
        CdrWriter(True).array(values, code)


@given(st.binary(max_size=60), st.booleans(), st.lists(st.sampled_from([*NUMBERS, "encapsulation"]), max_size=8))
def test_any_octets_give_values_or_the_error(data: bytes, little: bool, names: list[str]) -> None:
    reader = CdrReader(data, little)
    try:
        for name in names:
            getattr(reader, name)()
    except CdrError:
        pass
    assert reader.at >= 0
