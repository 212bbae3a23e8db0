"""Which type of a MAMA field a column becomes. Pure.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from mama_spark.contracts.errors import ConfigError, SchemaError
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.omnm_columns import DTYPES
from mama_spark.mama.messages.status import RESERVED
from mama_spark.openmama.wire.protocol.dictionary import DictionaryEntry, by_name, type_named

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
    """One field of each message.

    :ivar type: as on the wire
    :ivar decimals: of a price; None: not stated
    """

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
        self,
        given: Sequence[tuple[str, int | None, str | None]] = (),
        dictionary: Sequence[DictionaryEntry] = (),
    ) -> None:
        self._dictionary: Mapping[str, DictionaryEntry] = by_name(dictionary)
        self._given = {name: (fid, _parse_type(name, text)) for name, fid, text in given}

    @property
    def named(self) -> list[str]:
        """The names in ``mamaFields``."""
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
        if f"VECTOR_{element.name}" in FieldType.__members__:
            return FieldType[f"VECTOR_{element.name}"]
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
    """:raises SchemaError: a column of this type cannot become a field of that type"""
    fits = kind is natural or kind in _ALSO.get(natural, ())
    if not fits and kind.name.startswith("VECTOR_") and natural.name.startswith("VECTOR_"):
        one, other = (FieldType[t.name.removeprefix("VECTOR_")] for t in (natural, kind))
        fits = other in _ALSO.get(one, ()) and other in (*INTEGERS, FieldType.F32, FieldType.F64, FieldType.CHAR)
    if not fits:
        raise SchemaError(f"column {name!r} of type {column} cannot become a field of type {kind.name}; cast it")
