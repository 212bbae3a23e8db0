"""AttrValUnion (Tango IDL) as CDR: the value of an attribute or of an element of a pipe. Pure.

Counts are checked before memory is allocated, so decoding takes at most a small multiple of the size of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..giop.cdr import CdrError, CdrReader, CdrWriter
from ..types import DTYPES, Content, DevState, Encoded, ValueKind

_STATES = tuple(DevState)
#: smallest size of an encoded DevEncoded, in octets
_ENCODED_SIZE = 12


def read_union(reader: CdrReader) -> tuple[ValueKind, Content]:
    """Decode AttrValUnion; returns discriminator and content.

    :raises CdrError: the data is truncated or invalid
    """
    kind = reader.enum(ValueKind)
    return kind, read_content(reader, kind)


def read_content(reader: CdrReader, kind: ValueKind) -> Content:
    """Decode the content of an AttrValUnion: an array of shape (n,) for numbers, a tuple for other sequences.

    :raises CdrError: the data is truncated or invalid
    """
    dtype = DTYPES.get(kind)
    if dtype is not None:
        return reader.array(dtype)
    if kind is ValueKind.STRING:
        return tuple(reader.strings())
    if kind is ValueKind.STATE:
        return _read_states(reader)
    if kind is ValueKind.DEVICE_STATE:
        return reader.enum(DevState)
    if kind is ValueKind.ENCODED:
        return tuple(Encoded(reader.string(), reader.octets()) for _ in range(reader.count(_ENCODED_SIZE)))
    reader.octet()  # the union carries a boolean without meaning
    return None


def _read_states(reader: CdrReader) -> tuple[DevState, ...]:
    numbers = reader.array(np.uint32)
    if len(numbers) and numbers.max() >= len(_STATES):
        raise CdrError(f"{numbers.max()} is no DevState")
    return tuple(_STATES[n] for n in numbers.tolist())


def write_union(writer: CdrWriter, kind: ValueKind, content: Content) -> None:
    """The inverse of :func:`read_union`.

    :raises CdrError: the content is not of this kind
    """
    writer.ulong(kind)
    write_content(writer, kind, content)


def write_content(writer: CdrWriter, kind: ValueKind, content: Content) -> None:
    """The inverse of :func:`read_content`.

    :raises CdrError: the content is not of this kind
    """
    dtype = DTYPES.get(kind)
    if kind is ValueKind.NO_DATA:
        if content is not None:
            raise CdrError("a value of kind NO_DATA must have no content")
        writer.octet(1)
    elif kind is ValueKind.DEVICE_STATE:
        writer.ulong(_state(content))
    elif content is None or isinstance(content, (DevState, str)):
        raise CdrError(f"{content!r} is no sequence of {kind.name}")
    elif dtype is not None:
        writer.array(cast(npt.ArrayLike, content), dtype)
    elif kind is ValueKind.STRING:
        writer.strings(_all(content, str))
    elif kind is ValueKind.STATE:
        writer.array([_state(state) for state in content], np.uint32)
    else:
        _write_encoded(writer, _all(content, Encoded))


def _write_encoded(writer: CdrWriter, values: tuple[Encoded, ...]) -> None:
    writer.count(len(values))
    for value in values:
        writer.string(value.format)
        writer.octets(value.data)


_T = TypeVar("_T")


def _all(content: object, wanted: type[_T]) -> tuple[_T, ...]:
    values = tuple(cast(Sequence[object], content))
    if not all(isinstance(value, wanted) for value in values):
        raise CdrError(f"not all of {values[:3]!r} are {wanted.__name__}")
    return cast("tuple[_T, ...]", values)


def _state(value: object) -> DevState:
    if not isinstance(value, DevState):
        raise CdrError(f"{value!r} is no DevState")
    return value
