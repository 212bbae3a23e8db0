"""CDR (Common Data Representation, CORBA 3.0, 15.3): encodes values in both byte orders. Pure.

A number is aligned to a multiple of its size, counted from a base: the start of a message, or the byte after the magic
of an event. The reader ignores the content of padding, the writer writes zeros. A string is its length (the NUL
included), its bytes in Latin-1, and a NUL. A sequence is its count and its elements; an empty one has no padding.

The reader compares lengths and counts with the size of the data before it allocates memory.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from mama_spark.contracts.errors import MamaError

_Float = float  # the methods called ``float`` hide the builtin
BytesLike = bytes | bytearray | memoryview
_NATIVE = sys.byteorder == "little"


class CdrError(MamaError):
    """Data that cannot be decoded (truncated or out of range), or a value that cannot be encoded."""


_E = TypeVar("_E", bound=IntEnum)
_N = TypeVar("_N", int, float)


@cache
def _members(enum: type[_E]) -> dict[int, _E]:
    return {int(member): member for member in enum}


def enum_of(enum: type[_E], value: int) -> _E:
    """Return the member with this number.

    :raises CdrError: the enumeration has no such member
    """
    found: _E | None = _members(enum).get(value)  # three times as fast as calling the enumeration
    if found is None:
        raise CdrError(f"{value} is no {enum.__name__}")
    return found


def _read(code: str, kind: type[_N]) -> Callable[[CdrReader], _N]:
    little, big = struct.Struct(f"<{code}"), struct.Struct(f">{code}")
    size = little.size

    def read(reader: CdrReader) -> _N:
        found: _N = (little if reader.little else big).unpack_from(reader._data, reader._advance(size))[0]
        return found

    return read


def _write(code: str) -> Callable[[CdrWriter, _Float], None]:
    little, big = struct.Struct(f"<{code}"), struct.Struct(f">{code}")
    size = little.size

    def write(writer: CdrWriter, value: _Float) -> None:
        writer.align(size)
        try:
            writer._data += (little if writer.little else big).pack(value)
        except (struct.error, OverflowError, TypeError) as error:
            raise CdrError(f"{value!r} does not fit its type: {error}") from None

    return write


class CdrReader:
    """Decoder of consecutive values.

    Every method raises :class:`CdrError` for truncated or invalid data, and no other exception.

    :param at: offset of the first value
    :param base: offset from which alignment counts
    :param end: offset of the end; None: all of ``data``
    :ivar at: offset of the next byte
    """

    __slots__ = ("_base", "_data", "_end", "at", "little")

    def __init__(self, data: BytesLike, little: bool, at: int = 0, base: int = 0, end: int | None = None) -> None:
        self._data = data
        self._base = base
        self._end = len(data) if end is None else end
        self.little = little
        self.at = at

    @property
    def left(self) -> int:
        return self._end - self.at

    def finish(self) -> None:
        """Check that all bytes were read.

        :raises CdrError: bytes are left
        """
        if self.at != self._end:
            raise CdrError(f"{self._end - self.at} bytes are left after the last value")

    def align(self, size: int) -> None:
        """Skip to the next multiple of ``size``, which may be beyond the end."""
        self.at += (self._base - self.at) % size

    def _advance(self, size: int) -> int:
        at = self.at + (self._base - self.at) % size
        if at + size > self._end:
            raise CdrError(f"truncated: {size} bytes needed at offset {at} of {self._end}")
        self.at = at + size
        return at

    def octet(self) -> int:
        return self._data[self._advance(1)]

    def boolean(self) -> bool:
        value = self._data[self._advance(1)]
        if value > 1:
            raise CdrError(f"{value} is no boolean")
        return value == 1

    short = _read("h", int)
    ushort = _read("H", int)
    long = _read("i", int)  #: 32 bits
    ulong = _read("I", int)  #: 32 bits
    longlong = _read("q", int)
    ulonglong = _read("Q", int)
    float = _read("f", _Float)  #: 32 bits
    double = _read("d", _Float)

    def enum(self, kind: type[_E]) -> _E:
        return enum_of(kind, self.ulong())

    def count(self, octets_each: int = 1) -> int:
        """The count of a sequence whose elements take at least ``octets_each`` bytes; so many bytes must be left."""
        count = self.ulong()
        if count * octets_each > self._end - self.at:
            raise CdrError(f"truncated: the count is {count}, and {self._end - self.at} bytes are left")
        return count

    def raw(self, size: int) -> bytes:
        if not 0 <= size <= self._end - self.at:
            raise CdrError(f"truncated: {size} bytes needed, {self._end - self.at} are left")
        start = self.at
        self.at += size
        return bytes(self._data[start : self.at])

    def octets(self) -> bytes:
        """sequence<octet>"""
        return self.raw(self.count())

    def string(self) -> str:
        """A string, without its NUL."""
        size = self.count()
        if not size:
            raise CdrError("a string of length 0; it must have a NUL")
        start, self.at = self.at, self.at + size
        text = str(self._data[start : self.at], "latin-1")
        if text.find("\0") != size - 1:
            raise CdrError("a string must have one NUL, as its last byte")
        return text[:-1]

    def strings(self) -> list[str]:
        """sequence<string>"""
        return [self.string() for _ in range(self.count(5))]

    def text(self) -> str:
        """A string for people, of a configuration or an error. PyTango sends UTF-8, other libraries Latin-1; what is no
        UTF-8 is Latin-1."""
        found = self.string()
        if found.isascii():
            return found
        try:
            return found.encode("latin-1").decode("utf-8")
        except UnicodeDecodeError:
            return found

    def texts(self) -> list[str]:
        """A sequence of :meth:`text`."""
        return [self.text() for _ in range(self.count(5))]

    def array(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Numbers or booleans of shape (count,) in native byte order: read-only; a view of the data if that has this
        order."""
        kind = np.dtype(dtype)
        size = kind.itemsize
        count = self.count(size)
        if not count:
            return np.frombuffer(b"", kind)
        start = self.at + (self._base - self.at) % size
        if start + count * size > self._end:
            raise CdrError(f"truncated: the count is {count}, and {self._end - start} bytes are left")
        self.at = start + count * size
        if kind == np.bool_:
            flags = np.frombuffer(self._data, np.uint8, count, start)
            if flags.max() > 1:
                raise CdrError(f"{flags.max()} is no boolean")
            found = flags.view(np.bool_)
        elif self.little == _NATIVE or size == 1:
            found = np.frombuffer(self._data, kind, count, start)
        else:
            found = np.frombuffer(self._data, kind.newbyteorder(), count, start).astype(kind)
        found.flags.writeable = False
        return found

    def encapsulation(self) -> CdrReader:
        """A reader of the next encapsulation (CORBA 15.3.3), which has a byte order and alignment of its own."""
        size = self.count()
        start, self.at = self.at, self.at + size
        order = self._data[start] if size else 2
        if order > 1:
            raise CdrError("an encapsulation must begin with its byte order, 0 or 1")
        return CdrReader(self._data, order == 1, start + 1, start, self.at)


class CdrWriter:
    """Encoder of consecutive values behind ``head``; the inverse of :class:`CdrReader`. Alignment counts from ``base``.
    Every method raises :class:`CdrError` for a value that does not fit its type."""

    __slots__ = ("_base", "_data", "little")

    def __init__(self, little: bool, head: bytes = b"", base: int = 0) -> None:
        self._data = bytearray(head)
        self._base = base
        self.little = little

    @classmethod
    def inner(cls, little: bool) -> Self:
        """A writer for the content of an :meth:`encapsulation`."""
        return cls(little, b"\1" if little else b"\0")

    def __len__(self) -> int:
        return len(self._data)

    def getvalue(self) -> bytes:
        return bytes(self._data)

    def align(self, size: int) -> None:
        gap = (self._base - len(self._data)) % size
        if gap:
            self._data += bytes(gap)

    def octet(self, value: int) -> None:
        try:
            self._data.append(value)
        except (ValueError, TypeError):
            raise CdrError(f"{value!r} is no octet") from None

    def boolean(self, value: bool) -> None:
        self._data.append(1 if value else 0)

    short = _write("h")
    ushort = _write("H")
    long = _write("i")  #: 32 bits
    ulong = _write("I")  #: 32 bits
    longlong = _write("q")
    ulonglong = _write("Q")
    float = _write("f")  #: 32 bits
    double = _write("d")
    count = ulong  #: of a sequence

    def raw(self, data: BytesLike) -> None:
        self._data += data

    def octets(self, data: BytesLike) -> None:
        self.count(len(data))
        self._data += data

    def string(self, text: str) -> None:
        self._string(text, "latin-1", "Latin-1")

    def _string(self, text: str, encoding: str, name: str) -> None:
        try:
            data = text.encode(encoding)
        except UnicodeEncodeError:
            raise CdrError(f"{text!r} cannot be encoded as {name}") from None
        if 0 in data:
            raise CdrError("a string must not contain a NUL")
        self.count(len(data) + 1)
        self._data += data
        self._data.append(0)

    def text(self, text: str) -> None:
        """A string for people, in UTF-8 as PyTango sends it: of a configuration or an error."""
        self._string(text, "utf-8", "UTF-8")

    def error_text(self, text: str) -> None:
        """A text of an error: in Latin-1, which PyTango's clients expect there; in UTF-8, as PyTango's servers, what
        that cannot carry, and what would be read as UTF-8."""
        try:
            text.encode("latin-1").decode("utf-8")
        except UnicodeDecodeError:
            self.string(text)
        except UnicodeEncodeError:
            self.text(text)
        else:
            self.text(text)

    def texts(self, texts: list[str] | tuple[str, ...]) -> None:
        self.count(len(texts))
        for text in texts:
            self.text(text)

    def strings(self, texts: list[str] | tuple[str, ...]) -> None:
        self.count(len(texts))
        for text in texts:
            self.string(text)

    def array(self, values: npt.ArrayLike, dtype: npt.DTypeLike) -> None:
        """A sequence of numbers or booleans, flattened in C order."""
        kind = np.dtype(dtype)
        found = _converted(values, kind).ravel()
        self.count(len(found))
        if len(found):
            self.align(kind.itemsize)
            self._data += found.astype(kind.newbyteorder("<" if self.little else ">")).tobytes()

    def encapsulation(self, inner: CdrWriter) -> None:
        """Write the content of a writer that :meth:`inner` made."""
        self.octets(inner._data)


def _converted(values: npt.ArrayLike, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert to an array of this type.

    :raises CdrError: a value would change by more than rounding to float
    """
    try:
        given = np.asarray(values)
        if given.dtype == kind or not given.size:
            return given.astype(kind)
        if given.dtype.kind not in "biuf" or (given.dtype.kind == "f") > (kind.kind == "f"):
            raise CdrError(f"values of {given.dtype} cannot be encoded as {kind}")
        with np.errstate(over="ignore"):
            found = given.astype(kind)
    except (ValueError, TypeError, OverflowError) as error:
        raise CdrError(f"cannot be encoded as an array of {kind}: {error}") from None
    same = np.array_equal(found, given) if kind.kind in "iub" else not (np.isinf(found) & np.isfinite(given)).any()
    if not same:
        raise CdrError(f"a value does not fit {kind}")
    return found
