"""CDR: wrapped data, and what is no value is refused. Values round-trip in the tests of what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mama_spark.tango.giop.cdr import CdrError, CdrReader, CdrWriter

from tests.support.tables import each


@pytest.mark.parametrize("little", [True, False])
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
    "array that its padding takes beyond the end": (b"\1\0\0\0" + bytes(8), lambda reader: reader.array("f8")),
    "array of booleans of 2": (b"\1\0\0\0\2", lambda reader: reader.array("?")),
    "encapsulation without an order": (bytes(4), CdrReader.encapsulation),
    "encapsulation of order 2": (b"\1\0\0\0\2", CdrReader.encapsulation),
    "encapsulation beyond the end": (b"\2\0\0\0\1", CdrReader.encapsulation),
    "raw beyond the end": (b"ab", lambda reader: reader.raw(3)),
    "raw of less than nothing": (b"ab", lambda reader: reader.raw(-1)),
    "octets left": (b"a", CdrReader.finish),
    "array beyond the end": (b"\xff\xff\xff\x1f" + bytes(100), lambda reader: reader.array("f8")),
}


@each("name", HOSTILE)
def test_octets_that_are_no_value_are_refused(name: str) -> None:
    data, read = HOSTILE[name]
    with pytest.raises(CdrError):
        read(CdrReader(data, True))


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
