"""Fields of many messages as columns of types that the reader chooses. Pure.

A value that its column cannot hold is null, and its message has a reason: nothing is cut or wrapped, only floats are
rounded. As mamalistenc prints them, a price has its number whether valid or not, and a time that was never set is null,
without a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from mama_spark.contracts.errors import ConfigError

from .field_types import FieldType
from .msg import MamaMsg
from .omnm_columns import DTYPES, DecodedColumns, FieldBlock, Int64s
from .values import HAS_DATE, HAS_TIME, MamaPrice, MamaTime

TIMESTAMP = pa.timestamp("us", "UTC")
#: Type of a column where only a dictionary gives the type of the field.
ARROW_TYPES: dict[FieldType, pa.DataType] = {
    FieldType.BOOL: pa.bool_(),
    FieldType.CHAR: pa.string(),
    FieldType.I8: pa.int8(),
    FieldType.U8: pa.int16(),
    FieldType.I16: pa.int16(),
    FieldType.U16: pa.int32(),
    FieldType.I32: pa.int32(),
    FieldType.U32: pa.int64(),
    FieldType.I64: pa.int64(),
    FieldType.U64: pa.decimal128(20, 0),
    FieldType.F32: pa.float32(),
    FieldType.F64: pa.float64(),
    FieldType.QUANTITY: pa.int64(),
    FieldType.PRICE: pa.float64(),
    FieldType.TIME: TIMESTAMP,
    FieldType.STRING: pa.string(),
    FieldType.OPAQUE: pa.binary(),
    FieldType.COLLECTION: pa.binary(),
}


def arrow_type_of(kind: FieldType) -> pa.DataType:
    """The type of a column for fields of this type: of a vector a list, of messages JSON."""
    if kind.element is not None and kind is not FieldType.VECTOR_MSG:
        return pa.list_(ARROW_TYPES[kind.element])
    return ARROW_TYPES.get(kind, pa.string())


@dataclass(frozen=True, slots=True)
class TypedField:
    """A column for the fields of one name.

    :ivar fid: fields of this number without a name, or with another one, are meant as well; 0 = by name alone
    """

    name: str
    type: pa.DataType
    fid: int = 0

    def takes(self, name: str, fid: int) -> bool:
        return name == self.name or (self.fid != 0 and fid == self.fid)


class UnfitColumn(ConfigError):
    """No field can be in a column of this type."""


def check_type(name: str, kind: pa.DataType) -> None:
    """Check that a column of this type can hold fields of messages.

    :raises UnfitColumn: it cannot
    """
    element = kind.value_type if pt.is_list(kind) else kind
    known = (
        pt.is_boolean(element) or pt.is_integer(element) or pt.is_floating(element) or pt.is_string(element)
        or pt.is_binary(element) or pt.is_decimal128(element) or element == TIMESTAMP
    )  # fmt: skip
    if not known:
        raise UnfitColumn(
            f"column {name!r} of type {kind}: fields of messages can be boolean, numbers, decimal, string, binary, "
            "timestamp, or arrays of these"
        )


_INTEGERS = frozenset(t for t, dtype in DTYPES.items() if dtype.kind in "iu" and t is not FieldType.CHAR)
_FLOATS = frozenset((FieldType.F32, FieldType.F64, FieldType.PRICE))
_BYTES = frozenset((FieldType.OPAQUE, FieldType.COLLECTION))


def typed_columns(found: DecodedColumns, fields: Sequence[TypedField], n: int) -> tuple[list[pa.Array], dict[int, str]]:
    """The columns, one a field, and for messages with a value that does not fit the reason.

    :param n: number of messages; those without the field have null. Where it stands twice, the first one counts
    """
    reasons: dict[int, str] = {}
    return [_column(field, found.blocks, n, reasons) for field in fields], reasons


def first_of_each(blocks: Iterable[FieldBlock], n: int) -> tuple[Int64s, list[FieldBlock]]:
    """Index of each message's value in the concatenated blocks, shape (n,), -1 = none; and the blocks in that order."""
    ordered = sorted(blocks, key=lambda block: -block.place)
    at = np.full(n, -1, np.int64)
    begin = 0
    for block in ordered:  # the last assignment wins: the first field
        at[block.rows] = np.arange(begin, begin + len(block.rows))
        begin += len(block.rows)
    return at, ordered


def _column(field: TypedField, blocks: Iterable[FieldBlock], n: int, reasons: dict[int, str]) -> pa.Array:
    mine = [block for block in blocks if field.takes(block.name, block.fid)]
    if not mine:
        return pa.nulls(n, field.type)
    whole = len(mine) == 1 and len(mine[0].rows) == n  # rows are ascending, so these are all
    at, mine = (None, mine) if whole else first_of_each(mine, n)
    parts = []
    for block in mine:
        values, unfit = converted(block, field.type)
        parts.append(values)
        for i in np.flatnonzero(unfit).tolist() if unfit is not None else ():
            shown = f"{block.values[i]}"[:60]
            reasons.setdefault(
                int(block.rows[i]), f"field {field.name}: {block.type.name} {shown} is no {field.type} without loss"
            )
    values = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    return values if at is None else values.take(pa.array(at, mask=at < 0))


#: Values in the wanted type, and which of them do not fit (None: all do).
_Converted = tuple[pa.Array, npt.NDArray[np.bool_] | None]


def converted(block: FieldBlock, kind: pa.DataType) -> _Converted:
    source, values = block.type, block.values
    if source is FieldType.PRICE:
        return _number(np.ascontiguousarray(values["value"]), kind)
    if source is FieldType.TIME:
        return _time(values, kind)
    if source is FieldType.BOOL:
        return _bool(values, kind)
    if source in _INTEGERS or source in _FLOATS:
        return _number(values, kind)
    if source is FieldType.CHAR:
        if pt.is_string(kind):
            return pa.array([chr(value) for value in values.tolist()], kind), None
        return _none(len(values), kind)
    if source is FieldType.STRING:
        return (values, None) if pt.is_string(kind) else _none(len(values), kind)
    return _object(source, values, kind)


def _none(n: int, kind: pa.DataType) -> _Converted:
    return pa.nulls(n, kind), np.ones(n, np.bool_)


def _masked(values: pa.Array, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    return pc.if_else(pa.array(nulls), pa.scalar(None, values.type), values)


def _number(values: npt.NDArray[Any], kind: pa.DataType) -> _Converted:
    if pt.is_integer(kind):
        return _integer(values, kind)
    if pt.is_floating(kind):
        if values.dtype.kind in "iu" and values.dtype.itemsize > (4 if pt.is_float64(kind) else 2):
            return _checked(values, values.astype(kind.to_pandas_dtype()))
        with np.errstate(over="ignore"):
            return pa.array(values.astype(kind.to_pandas_dtype(), copy=False)), None
    if pt.is_string(kind):
        return pa.array(values).cast(kind), None
    if pt.is_decimal(kind):
        return _decimal(values, kind)
    if pt.is_boolean(kind):
        unfit = (values != 0) & (values != 1)
        return _nulled(pa.array(values != 0), unfit)
    return _none(len(values), kind)


def _checked(values: npt.NDArray[Any], made: npt.NDArray[Any]) -> _Converted:
    """Integers as floats: exact ones only."""
    exact = np.abs(made) < 2.0**63 if values.dtype.kind == "i" else made < 2.0**64
    unfit = ~exact
    unfit[exact] = made[exact].astype(values.dtype) != values[exact]
    return _nulled(pa.array(made), unfit)


def _integer(values: npt.NDArray[Any], kind: pa.DataType) -> _Converted:
    target = np.dtype(kind.to_pandas_dtype())
    if values.dtype == target or np.can_cast(values.dtype, target):
        return pa.array(values.astype(target, copy=False)), None
    limits = np.iinfo(target)
    if values.dtype.kind == "f":
        unfit = ~((values >= limits.min) & (values < -2.0 * (limits.min // 2)) & (np.trunc(values) == values))
    else:
        unfit = values > limits.max
        if values.dtype.kind == "i":
            unfit |= values < limits.min
    return _nulled(pa.array(np.where(unfit, 0, values).astype(target)), unfit)


def _nulled(made: pa.Array, unfit: npt.NDArray[np.bool_]) -> _Converted:
    return (_masked(made, unfit), unfit) if unfit.any() else (made, None)


def _decimal(values: npt.NDArray[Any], kind: pa.DataType) -> _Converted:
    """Floats are rounded to the scale: they are no decimals. One by one where some are too large."""
    array = pa.array(values)
    try:
        return (array if pt.is_floating(array.type) else array.cast(pa.decimal128(20, 0))).cast(kind), None
    except pa.ArrowInvalid:
        pass
    made: list[Any] = []
    for scalar in array:
        try:
            made.append(scalar.cast(pa.decimal128(20, 0) if pt.is_integer(array.type) else kind).cast(kind).as_py())
        except pa.ArrowInvalid:
            made.append(None)
    return pa.array(made, kind), np.array([value is None for value in made], np.bool_)


def _bool(values: npt.NDArray[np.bool_], kind: pa.DataType) -> _Converted:
    if pt.is_boolean(kind):
        return pa.array(values), None
    if pt.is_string(kind):
        return pa.array(np.where(values, "true", "false"), kind), None
    return _number(values.astype(np.uint8), kind)


_LAST_US = 2**63 // 1_000_000 - 2  #: seconds whose microseconds fit in 64 bits
_SET = HAS_DATE | HAS_TIME  #: hints, of which a time that was set has one


def _time(values: npt.NDArray[Any], kind: pa.DataType) -> _Converted:
    """Times without a date become only text."""
    seconds, nanos = values["seconds"].astype(np.int64), values["nanos"].astype(np.int64)
    if pt.is_string(kind):
        texts = [time_text(int(s), int(ns), int(h)) for s, ns, h in zip(seconds, nanos, values["hints"], strict=True)]
        return pa.array(texts, kind), None
    if kind != TIMESTAMP:
        return _none(len(values), kind)
    unset = (values["hints"] & _SET) == 0
    unfit = (np.abs(seconds) >= _LAST_US) | ((values["hints"] & HAS_DATE) == 0)
    made = pa.array(np.where(unfit, 0, seconds) * 1_000_000 + nanos // 1000).view(TIMESTAMP)
    return _masked(made, unfit), unfit & ~unset


def time_text(seconds: int, nanos: int, hints: int) -> str | None:
    """A time as ISO 8601; one without a date as the time of day. None: it was never set."""
    if not hints & _SET:
        return None
    if not -62_135_596_800 <= seconds < 253_402_300_800:
        return f"{seconds}.{nanos:09d}"
    text = str(np.datetime64(seconds, "s"))
    fraction = f".{nanos:09d}".rstrip("0").rstrip(".") if nanos < 1_000_000_000 else ""
    return f"{text if hints & HAS_DATE else text[11:]}{fraction}Z"


def _object(source: FieldType, values: list[Any], kind: pa.DataType) -> _Converted:
    if source in _BYTES and pt.is_binary(kind):
        return pa.array(values, kind), None
    if pt.is_string(kind):
        return pa.array([text_of_value(value) for value in values], kind), None
    if not pt.is_list(kind) or source.element is None or source is FieldType.VECTOR_MSG:
        return _none(len(values), kind)
    make = _ELEMENTS.get(source.element, _as_it_is)
    made: list[Any] = []
    for value in values:
        try:
            made.append(pa.array([[make(item) for item in value]], kind)[0].as_py())
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            made.append(None)
    return pa.array(made, kind), np.array([value is None for value in made], np.bool_)


def _time_value(time: MamaTime) -> Any:
    if time.hints & _SET == HAS_TIME:
        raise ValueError("a time of day is no timestamp")
    return np.datetime64(time.us, "us").astype(object) if time.hints & _SET else None


def _as_it_is(value: Any) -> Any:
    return value


_ELEMENTS: dict[FieldType, Callable[[Any], Any]] = {FieldType.PRICE: attrgetter("value"), FieldType.TIME: _time_value}


def text_of_value(value: Any) -> str | None:
    """Any value as text: text and numbers as they are, bytes in hexadecimal, else JSON; None for a time never set."""
    if isinstance(value, MamaTime):
        return time_text(value.seconds, value.nanos, value.hints)
    if isinstance(value, MamaPrice):
        return repr(value.value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, MamaMsg):
        return orjson.dumps(value.as_dict()["fields"]).decode()
    if isinstance(value, tuple):
        return orjson.dumps([_json(item) for item in value]).decode()
    return value if isinstance(value, str) else repr(value)


def _json(value: Any) -> Any:
    if isinstance(value, MamaMsg):
        return value.as_dict()["fields"]
    return (
        text_of_value(value)
        if isinstance(value, MamaTime | bytes)
        else (value.value if isinstance(value, MamaPrice) else value)
    )
