"""Readings of attributes: Python values converted to values of Tango types. Pure.

A single number is checked when it is set, and converted when an event or a read needs it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..giop.cdr import CdrError, CdrWriter
from ..types import (
    DTYPES,
    NO_DIM,
    ONE,
    STRUCT_CODES,
    AttributeValue,
    Content,
    DataType,
    DevError,
    DevState,
    Dim,
    Encoded,
    Format,
    Quality,
    ValueKind,
)
from .device import Attribute


@dataclass(slots=True, eq=False)
class AttributeReading:
    """Value of one attribute, or errors instead, at a time in nanoseconds since the epoch. ``numbers`` are the read
    value, and set value of a settable attribute, if these are single numbers; else None."""

    numbers: tuple[float, ...] | None
    _content: Content
    time: int
    quality: Quality = Quality.VALID
    r_dim: Dim = ONE
    w_dim: Dim = NO_DIM
    errors: tuple[DevError, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is no value: the reading has errors, or the quality INVALID."""
        return bool(self.errors) or self.quality is Quality.INVALID

    def content(self, kind: ValueKind) -> Content:
        """Content in the form of the field ``content`` of :class:`~mama_spark.tango.types.AttributeValue`."""
        if self._content is None and self.numbers is not None:
            self._content = np.array(self.numbers, DTYPES[kind])
        return self._content

    def value(self, attribute: Attribute) -> AttributeValue:
        kind, r_dim, w_dim = attribute.kind, self.r_dim, self.w_dim
        if self.empty:
            kind, r_dim, w_dim = ValueKind.NO_DATA, NO_DIM, NO_DIM
        content = None if self.empty else self.content(kind)
        return AttributeValue(
            attribute.name, kind, content, self.time, self.quality, attribute.format, int(attribute.data_type),
            r_dim, w_dim, self.errors,
        )  # fmt: skip

    @classmethod
    def failed(cls, errors: Sequence[DevError], time: int) -> AttributeReading:
        return cls(None, None, time, Quality.INVALID, NO_DIM, NO_DIM, tuple(errors))

    @classmethod
    def invalid(cls, time: int) -> AttributeReading:
        return cls(None, None, time, Quality.INVALID, NO_DIM, NO_DIM)


class ReadingFactory:
    """Makes readings of one attribute from Python values."""

    __slots__ = ("_code", "_count", "attribute")

    def __init__(self, attribute: Attribute) -> None:
        self.attribute = attribute
        single = attribute.format is Format.SCALAR and attribute.kind in DTYPES
        self._count = 2 if attribute.settable else 1
        self._code = struct.Struct("<" + STRUCT_CODES[attribute.kind] * self._count) if single else None

    def make(self, value: Any, time: int, quality: Quality = Quality.VALID, written: Any = None) -> AttributeReading:
        """Make a reading from a number, text, array of shape (x,) or (y, x), :class:`Encoded`, bytes, or
        :class:`DevState`.

        :param time: nanoseconds since the epoch
        :param written: set value of a settable attribute; None: there is none, or zero for a scalar
        :raises CdrError: the value is not of the attribute's type
        """
        if quality is Quality.INVALID:
            return AttributeReading.invalid(time)
        if self._code is None:
            return self._general(value, time, quality, written)
        numbers = (value,) if self._count == 1 else (value, 0 if written is None else written)
        try:
            self._code.pack(*numbers)
            if self.attribute.data_type is DataType.BOOLEAN and any(number > 1 for number in numbers):
                raise TypeError
        except (struct.error, OverflowError, TypeError):
            return self._general(value, time, quality, written)
        return AttributeReading(numbers, None, time, quality, ONE, NO_DIM if self._count == 1 else ONE)

    def _general(self, value: Any, time: int, quality: Quality, written: Any) -> AttributeReading:
        read, r_dim = self._elements(value)
        if written is None and self.attribute.format is Format.SCALAR:
            written = _ZERO.get(self.attribute.data_type, 0)
        if not self.attribute.settable or written is None:
            return AttributeReading(None, read, time, quality, r_dim)
        more, w_dim = self._elements(written)
        both = np.concatenate((read, more)) if isinstance(read, np.ndarray) else cast(Any, read) + cast(Any, more)
        return AttributeReading(None, both, time, quality, r_dim, w_dim)

    def _elements(self, value: Any) -> tuple[Any, Dim]:
        kind, name = self.attribute.kind, self.attribute.name
        dtype = DTYPES.get(kind)
        if dtype is not None:
            found = _converted(value, dtype, name)
            return found.ravel(), self._dims(found.shape)
        if kind is ValueKind.DEVICE_STATE:
            return _checked(value, DevState, name), ONE
        if self.attribute.format is Format.SCALAR:
            return (_checked(value, _CLASSES[kind], name),), ONE
        rows = list(value)
        shape: tuple[int, ...] = (len(rows),)
        if self.attribute.format is Format.IMAGE:
            shape = (len(rows), len(rows[0]) if rows else 0)
            if any(len(row) != shape[1] for row in rows):
                raise CdrError(f"{name}: the rows of an image must have the same length")
            rows = [element for row in rows for element in row]
        return tuple(_checked(element, _CLASSES[kind], name) for element in rows), self._dims(shape)

    def _dims(self, shape: tuple[int, ...]) -> Dim:
        if len(shape) != int(self.attribute.format) and not (shape == (0,) and self.attribute.format is Format.IMAGE):
            raise CdrError(f"{self.attribute.name}: a {self.attribute.format.name} cannot have {len(shape)} dimensions")
        if self.attribute.format is Format.SCALAR:
            return ONE
        dim = Dim(shape[0], 0) if len(shape) == 1 else Dim(shape[1], shape[0])
        return dim if dim.size else NO_DIM


_CLASSES: dict[ValueKind, type[Any]] = {ValueKind.STRING: str, ValueKind.STATE: DevState, ValueKind.ENCODED: Encoded}
_ZERO: dict[DataType, Any] = {
    DataType.STRING: "", DataType.STATE: DevState.ON, DataType.ENCODED: Encoded("", b""), DataType.BOOLEAN: False
}  # fmt: skip


def _checked(value: Any, cls: type[Any], name: str) -> Any:
    if cls is Encoded and isinstance(value, bytes | bytearray | memoryview):
        return Encoded("", bytes(value))
    if not isinstance(value, cls):
        raise CdrError(f"{name}: {value!r:.100} is no {cls.__name__}")
    if cls is str and ("\0" in value or not value.isascii()):
        try:  # refused when it is set, not when a client reads it
            CdrWriter(True).string(value)
        except CdrError as error:
            raise CdrError(f"{name}: {error}") from None
    return value


def _converted(value: Any, dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    """A copy of this type, so that later changes of the caller's array have no effect."""
    try:
        given = np.asarray(value)
        if given.dtype.kind == "f" and dtype == np.uint64 and not isinstance(value, np.ndarray):
            given = _integers(value)
        CdrWriter(True).array(given, dtype)
        return given.astype(dtype)
    except (CdrError, ValueError, TypeError, OverflowError) as error:
        raise CdrError(f"{name}: {error}") from None


def _integers(value: Any) -> npt.NDArray[Any]:
    """Convert integers below and above 2^63 in one list, which numpy would convert to floats."""
    found = np.array(value, object)
    if all(isinstance(number, int) and number >= 0 for number in found.ravel()):  # numpy 1 takes -1 for 2^64 - 1
        return found.astype(np.uint64)
    return np.asarray(value)
