"""Columns as the bytes of OMNM fields: one field of all rows at a time, without a loop over rows. Pure.

A field is a head (type, number, name, NUL) that all rows share, and a value. :func:`field_column` gives the whole field
of each row, empty where the row has none, and :func:`joined` puts those of a row together. The type of a field:

=============================== =======================================================================
column                          field, unless ``mamaFields`` or the dictionary say otherwise
=============================== =======================================================================
boolean                         BOOL
tinyint, smallint, int, bigint  I8, I16, I32, I64
float, double                   F32, F64
decimal(p,s)                    PRICE of s decimals
string                          STRING
binary                          OPAQUE
timestamp, date                 TIME, of microseconds or days
array of these but binary       the vector of it
=============================== =======================================================================

Fields of the reserved numbers (MdMsgType, ...) have their own. A null is no field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from mama_spark.contracts.errors import BadRow, ConfigError, PublishError, SchemaError
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import MamaMsg
from mama_spark.mama.messages.omnm import HEADER, encode
from mama_spark.mama.messages.omnm_columns import DTYPES, PRICE_DTYPE, TIME_DTYPE
from mama_spark.mama.messages.status import RESERVED, StatusError
from mama_spark.mama.messages.values import (
    DAYS,
    HAS_DATE,
    HAS_TIME,
    INTEGER_PRECISION,
    MICROSECONDS,
    NANOSECONDS,
    PRICE_VALID,
    MamaTime,
)
from mama_spark.openmama.wire.dictionary import DictionaryEntry, by_name, type_named

MAX_DECIMALS = 15  #: that the hints of a price can state
#: Types of reserved fields that real programs cannot read otherwise.
_STAMPS = {"MdMsgType": FieldType.U8, "MdMsgStatus": FieldType.U8, "MdSeqNum": FieldType.U32}
_SCALARS: dict[pa.DataType, FieldType] = {
    pa.bool_(): FieldType.BOOL,
    pa.int8(): FieldType.I8,
    pa.int16(): FieldType.I16,
    pa.int32(): FieldType.I32,
    pa.int64(): FieldType.I64,
    pa.float32(): FieldType.F32,
    pa.float64(): FieldType.F64,
    pa.string(): FieldType.STRING,
    pa.large_string(): FieldType.STRING,
    pa.binary(): FieldType.OPAQUE,
    pa.large_binary(): FieldType.OPAQUE,
    pa.date32(): FieldType.TIME,
}
INTEGERS: dict[FieldType, tuple[int, int]] = {
    kind: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for kind, dtype in DTYPES.items()
    if dtype.kind in "iu" and kind not in (FieldType.CHAR, FieldType.QUANTITY)
}
_TYPE = re.compile(r"(\w+?)(?:\((\d+)\))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class FieldForm:
    """One field of each message; ``decimals`` of a price, None: not stated."""

    name: str
    fid: int
    type: FieldType
    decimals: int | None = None


class FieldForms:
    """Numbers and types of fields by name.

    :param given: name, number and type of fields, as option ``mamaFields`` has them
    :param dictionary: entries for the names that are not given
    :raises ConfigError: a type is not known, or of no use
    """

    def __init__(
        self, given: Sequence[tuple[str, int | None, str | None]] = (), dictionary: Sequence[DictionaryEntry] = ()
    ) -> None:
        self._dictionary: Mapping[str, DictionaryEntry] = by_name(dictionary)
        self._given = {name: (fid, _parse_type(name, text)) for name, fid, text in given}

    @property
    def named(self) -> list[str]:
        return list(self._given)

    def form(self, name: str, column: pa.DataType) -> FieldForm:
        """The field that a column becomes.

        :raises SchemaError: a field cannot hold it
        """
        fid, chosen = self._given.get(name, (None, None))
        entry = self._dictionary.get(name)
        if fid is None:
            fid = entry.fid if entry is not None else RESERVED[name].fid if name in RESERVED else 0
        kind, decimals = chosen or (None, None)
        if kind is None and entry is not None:
            kind = entry.type
        if name in _STAMPS:
            kind = _STAMPS[name]
        natural = natural_type(name, column)
        if kind is None:
            kind = natural
        check_fits(name, column, natural, kind)
        if kind is FieldType.PRICE and decimals is None and pt.is_decimal(column):
            decimals = column.scale
        if decimals is not None and not 0 <= decimals <= MAX_DECIMALS:
            raise SchemaError(f"column {name!r}: a PRICE states at most {MAX_DECIMALS} decimals, not {decimals}")
        return FieldForm(name, fid, kind, decimals)


def _parse_type(name: str, text: str | None) -> tuple[FieldType, int | None] | None:
    if text is None:
        return None
    match = _TYPE.fullmatch(text)
    kind = type_named(match[1]) if match is not None else None
    if match is None or kind is None or kind in (FieldType.UNKNOWN, FieldType.COLLECTION):
        raise ConfigError(f"option mamaFields: {text!r} of {name!r} is no type of a field, such as STRING or PRICE(2)")
    if match[2] is not None and kind is not FieldType.PRICE:
        raise ConfigError(f"option mamaFields: {text!r} of {name!r}: only a PRICE has decimals")
    return kind, None if match[2] is None else int(match[2])


def natural_type(name: str, column: pa.DataType) -> FieldType:
    """The type of a column's own.

    :raises SchemaError: there is none
    """
    if column in _SCALARS:
        return _SCALARS[column]
    if pt.is_timestamp(column):
        return FieldType.TIME
    if pt.is_decimal(column):
        return FieldType.PRICE
    if pt.is_list(column) or pt.is_large_list(column):
        element = natural_type(name, column.value_type)
        if element.element is None and element is not FieldType.OPAQUE:
            return element.vector
    raise SchemaError(
        f"column {name!r} of type {column} has no type of a MAMA field; cast it, or drop it (a struct: name its parts)"
    )


_NUMBERS = {*INTEGERS, FieldType.F32, FieldType.F64, FieldType.PRICE}
#: Type of a column -> types of fields that it can become besides its own.
_ALSO: dict[FieldType, set[FieldType]] = {
    FieldType.BOOL: {FieldType.STRING, *INTEGERS},
    FieldType.STRING: {FieldType.CHAR},
    **{kind: _NUMBERS | {FieldType.STRING} for kind in (FieldType.I8, FieldType.I16, FieldType.I32, FieldType.I64)},
    FieldType.F32: {FieldType.F64, FieldType.PRICE, FieldType.STRING},
    FieldType.F64: {FieldType.F32, FieldType.PRICE, FieldType.STRING},
    FieldType.PRICE: _NUMBERS | {FieldType.STRING},  # a decimal
}


def check_fits(name: str, column: pa.DataType, natural: FieldType, kind: FieldType) -> None:
    """Check that a column, by default a field of type ``natural``, can become one of type ``kind``.

    :raises SchemaError: it cannot
    """
    fits = kind is natural or kind in _ALSO.get(natural, ())
    one, other = natural.element, kind.element
    if not fits and one is not None and other is not None:
        fits = other in _ALSO.get(one, ()) and other in (*INTEGERS, FieldType.F32, FieldType.F64, FieldType.CHAR)
    if not fits:
        raise SchemaError(f"column {name!r} of type {column} cannot become a field of type {kind.name}; cast it")


ByteArray = npt.NDArray[np.uint8]
_INT64 = pa.int64()
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass
class Faults:
    """Rows that cannot become a message, with the reason; the first one of a row counts."""

    bad: dict[int, PublishError] = field(default_factory=dict)

    def add(self, form: FieldForm, where: pa.Array | npt.NDArray[np.bool_], why: Callable[[int], str] | str) -> None:
        """Note rows as wrong where ``where`` is True; null is right. ``why``: the reason, or row -> reason."""
        mask = where if isinstance(where, np.ndarray) else np.asarray(pc.fill_null(where, False))
        for row in np.flatnonzero(mask).tolist():
            text = why if isinstance(why, str) else why(row)
            self.bad.setdefault(row, BadRow(f"column {form.name!r}: {text}"))


def field_head(form: FieldForm) -> bytes:
    return bytes([form.type]) + form.fid.to_bytes(2, "little") + form.name.encode() + b"\0"


def field_column(form: FieldForm, values: pa.Array, faults: Faults) -> pa.Array:
    """The field of each row: binary; null where there is none. Rows of ``faults`` may hold anything."""
    head = field_head(form)
    if form.type in (FieldType.STRING, FieldType.OPAQUE, FieldType.CHAR):
        return _texts(form, head, values, faults)
    if form.type is FieldType.TIME:
        return _fixed(head, _times(form, values, faults), values)
    if form.type is FieldType.PRICE:
        return _fixed(head, _prices(form, values, faults), values)
    if form.type.element is not None:
        return _vectors(form, values, faults)
    return _fixed(head, _numbers(form, values, faults), values)


def joined(columns: list[pa.Array | pa.Scalar]) -> pa.Array:
    """The columns of each row one after the other; null is nothing."""
    return pc.binary_join_element_wise(*columns, b"", null_handling="replace", null_replacement=b"")


def constant(raw_bytes: bytes, n: int) -> pa.Array:
    return pa.repeat(pa.scalar(raw_bytes, pa.binary()), n)


def _fixed(head: bytes, values: ByteArray, column: pa.Array) -> pa.Array:
    n, width = values.shape
    whole = np.empty((n, len(head) + width), np.uint8)
    whole[:, : len(head)] = np.frombuffer(head, np.uint8)
    whole[:, len(head) :] = values
    offsets = np.arange(n + 1, dtype=np.int64) * whole.shape[1]
    made = pa.Array.from_buffers(
        pa.large_binary(), n, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(whole.tobytes())]
    ).cast(pa.binary())
    return pc.if_else(column.is_valid(), made, None) if column.null_count else made


def _bytes(values: npt.NDArray[Any]) -> ByteArray:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)


def _numbers(form: FieldForm, values: pa.Array, faults: Faults) -> ByteArray:
    if form.type is FieldType.BOOL:
        return _bytes(np.asarray(values.fill_null(False)).astype(np.uint8))
    if form.type in (FieldType.F32, FieldType.F64):
        return _bytes(_floats(form, values, faults))
    if pt.is_decimal(values.type):
        return _bytes(_decimal_integers(form, values, faults))
    if pt.is_boolean(values.type):
        values = values.cast(pa.int8())
    found = np.asarray(values.cast(_INT64).fill_null(0))
    low, high = INTEGERS[form.type]
    wrong = (found < low) | (found > min(high, (1 << 63) - 1))
    faults.add(form, wrong, lambda row: f"{found[row]} does not fit into {form.type.name}")
    return _bytes(np.where(wrong, 0, found).astype(DTYPES[form.type]))


def _decimal_integers(form: FieldForm, values: pa.Array, faults: Faults) -> npt.NDArray[Any]:
    low, high = INTEGERS[form.type]

    def whole(value: Decimal) -> int:
        if value != int(value) or not low <= value <= high:
            raise ValueError(f"{value} does not fit into {form.type.name}")
        return int(value)

    return np.array([number or 0 for number in _each(form, values, faults, whole)], DTYPES[form.type])


def _floats(form: FieldForm, values: pa.Array, faults: Faults) -> npt.NDArray[Any]:
    doubles = _doubles(values)
    if form.type is not FieldType.F32:
        return doubles.astype("<f8")
    with np.errstate(over="ignore"):
        singles = doubles.astype("<f4")
    faults.add(form, np.isinf(singles) & ~np.isinf(doubles), lambda row: f"{doubles[row]} is too large for F32")
    return singles


def _prices(form: FieldForm, values: pa.Array, faults: Faults) -> ByteArray:
    made = np.zeros(len(values), PRICE_DTYPE)
    decimals = form.decimals
    made["hints"] = PRICE_VALID | (0 if decimals is None else decimals or INTEGER_PRECISION)
    made["value"] = _doubles(values)
    return _bytes(made)


def _doubles(values: pa.Array) -> npt.NDArray[np.float64]:
    """The nearest doubles; Arrow's own conversion of decimals is off by one in the last place."""
    if pt.is_decimal(values.type):
        values = values.cast(pa.string())
    found: npt.NDArray[np.float64] = np.asarray(values.cast(pa.float64(), safe=False).fill_null(0.0))
    return found


def _times(form: FieldForm, values: pa.Array, faults: Faults) -> ByteArray:
    made = np.zeros(len(values), TIME_DTYPE)
    if pt.is_date(values.type):
        seconds = np.asarray(values.cast(pa.int32()).fill_null(0)).astype(np.int64) * 86_400
        made["hints"], made["precision"] = HAS_DATE, DAYS
    else:
        unit = values.type.unit
        count = np.asarray(values.cast(_INT64).fill_null(0))
        seconds, rest = np.divmod(count, _PER_SECOND[unit])
        made["nanos"] = rest * (1_000_000_000 // _PER_SECOND[unit])
        made["hints"], made["precision"] = HAS_DATE | HAS_TIME, NANOSECONDS if unit == "ns" else MICROSECONDS
    wrong = (seconds < 0) | (seconds >= 1 << 32)
    faults.add(form, wrong, "OpenMAMA's programs misread times before 1970 and after 2106")
    made["seconds"] = np.where(wrong, 0, seconds)
    return _bytes(made)


def _texts(form: FieldForm, head: bytes, values: pa.Array, faults: Faults) -> pa.Array:
    if form.type is FieldType.OPAQUE:
        value_bytes = values.cast(pa.binary())
        lengths = np.asarray(pc.fill_null(pc.binary_length(value_bytes), 0)).astype("<u4")
        return pc.binary_join_element_wise(_fixed(head, _bytes(lengths), value_bytes), value_bytes, b"")
    texts = values.cast(pa.string())
    if form.type is FieldType.CHAR:
        return _characters(form, head, texts, faults)
    faults.add(form, pc.match_substring(texts, "\0"), "a STRING ends at its first NUL and cannot hold one")
    return pc.binary_join_element_wise(head, texts.cast(pa.binary()), b"\0", b"")


def _characters(form: FieldForm, head: bytes, texts: pa.Array, faults: Faults) -> pa.Array:
    def to_bytes(text: str) -> bytes:
        if len(text) != 1 or text > "\xff":
            raise ValueError(f"{text!r} is not one character of Latin-1")
        return head + text.encode("latin-1")

    return pa.array(_each(form, texts, faults, to_bytes), pa.binary())


def _vectors(form: FieldForm, values: pa.Array, faults: Faults) -> pa.Array:
    """Vectors are rare, and their elements are checked by the message itself."""

    def to_bytes(elements: list[Any]) -> bytes:
        if form.type is FieldType.VECTOR_TIME:
            elements = [MamaTime.from_us(round(at.timestamp() * 1e6)) for at in elements]
        msg = MamaMsg()
        msg.add(form.type, form.name, form.fid, elements)
        return encode(msg)[len(HEADER) :]

    return pa.array(_each(form, values, faults, to_bytes), pa.binary())


def _each(form: FieldForm, values: pa.Array, faults: Faults, make: Callable[[Any], Any]) -> list[Any]:
    """The encoding of each value, row by row; None for a null and for a faulty value."""
    made: list[Any] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            made.append(None if value is None else make(value))
        except (StatusError, AttributeError, ValueError) as e:
            why = "an element is null" if isinstance(e, AttributeError) else getattr(e, "info", str(e))
            faults.bad.setdefault(row, BadRow(f"column {form.name!r}: {why}"))
            made.append(None)
    return made
