"""Columns of ``mamasub``, and those that a query reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mama_spark.contracts.errors import OptionError, SchemaError
from mama_spark.contracts.message import RecordFormat
from mama_spark.contracts.middlewares import imported
from mama_spark.options import SubscribeOptions
from mama_spark.registry import record_format

from ..features import arrow_schema

TRACE = "traceparent"
OPERATION = "operation"
_COLUMNS: dict[str, DataType] = {
    "topic": StringType(),
    "key": StringType(),
    "value": BinaryType(),
    "headers": MapType(StringType(), ArrayType(StringType())),
    "stream": StringType(),
    "sequence": LongType(),
    "revision": LongType(),
    "operation": StringType(),
    "pack_index": IntegerType(),
    "timestamp": TimestampType(),
    "id": StringType(),
    "pack_error": StringType(),
    TRACE: StringType(),
}


def _schema(*without: str) -> StructType:
    left_out = {*without, "key", "revision", OPERATION, TRACE}
    return StructType([StructField(name, kind) for name, kind in _COLUMNS.items() if name not in left_out])


SCHEMA = _schema()
#: For messages that are not unpacked.
PLAIN_SCHEMA = _schema("pack_index", "pack_error")
#: For messages that are only decompressed, which may fail.
DECOMPRESSED_SCHEMA = _schema("pack_index")
BUCKET_SCHEMA = StructType(
    [StructField(name, _COLUMNS[name]) for name in ("key", "value", "revision", OPERATION, "timestamp", "headers")]
)
#: All columns but those of recorders, in Arrow.
ARROW_SCHEMA = arrow_schema(StructType([StructField(name, kind) for name, kind in _COLUMNS.items()]))


def schema_of(o: SubscribeOptions) -> StructType:
    also = [OPERATION] if o.current and o.bucket is None else []
    also += [TRACE] if o.trace_context == "column" else []
    return StructType([*_columns_of(o).fields, *(StructField(name, StringType()) for name in also)])


def _columns_of(o: SubscribeOptions) -> StructType:
    if (decoded := record_format(o)) is not None:
        own = _recorded_schema(decoded)
        known = {name.lower() for name in (*own.names, *([OPERATION] if o.current else ()), TRACE)}
        named = imported(decoded.field_columns)(o) if decoded.field_columns else pa.schema([])
        fields = from_arrow_schema(named, prefer_timestamp_ntz=True).fields
        if taken := [f.name for f in fields if f.name.lower() in known]:
            raise OptionError(
                f"option fields: {taken[0]} is a column of mamasub itself; read that field from mama.fields"
            )
        return StructType([*own.fields, *fields])
    if o.bucket is not None:
        return BUCKET_SCHEMA
    return SCHEMA if o.unpack else DECOMPRESSED_SCHEMA if o.decompress else PLAIN_SCHEMA


def _recorded_schema(decoded: RecordFormat) -> StructType:
    """Columns of a recorder's records; their own column has the reason of an unreadable one."""
    without = ("pack_error",) if decoded.packed else ("pack_index", "pack_error")
    own = from_arrow_type(decoded.type, prefer_timestamp_ntz=True)
    return StructType([*_schema(*without).fields, StructField(decoded.column, own)])


@dataclass(frozen=True)
class MessageColumns:
    """The columns that a query reads.

    :ivar typed: columns of the packs, which the user's schema names
    :ivar decoded: format of a recorder's records
    :ivar fields: fields from which ``decoded`` makes ``typed``
    :ivar operations: as :attr:`~mama_spark.contracts.middlewares.Middleware.operations`
    :ivar keys: layout of the bucket whose keys are the rows; None = rows are messages
    :ivar mode: ``failfast``, ``permissive`` or ``dropmalformed``, for messages that do not fit
    """

    arrow: pa.Schema
    typed: pa.Schema
    mode: str = "permissive"
    decoded: RecordFormat | None = None
    fields: tuple[Any, ...] = ()
    operations: str | None = None
    keys: str | None = None

    @property
    def needs_typed_rows(self) -> bool:
        """Whether a message without typed rows would be a row of nulls."""
        return len(self.typed) > 0 and "value" not in self.arrow.names

    @property
    def as_json(self) -> bool:
        """Whether typed rows become JSON in ``value``, because the schema names none of their columns."""
        return not len(self.typed) and "value" in self.arrow.names


def message_columns_of(given: StructType, o: SubscribeOptions) -> MessageColumns:
    """Columns to read for the format's own schema, or the user's.

    :raises OptionError: ``mode`` without columns of packs
    :raises SchemaError: a column has another type, is not nullable or doubled, or is of packs where none are unpacked
    """
    known = {f.name: f.dataType for f in schema_of(o).fields}
    decoded = record_format(o)
    takes_more = o.unpack if decoded is None else decoded.field_columns is not None
    columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
    arrow = arrow_schema(given)
    for f, field in zip(given.fields, arrow, strict=True):
        if f.name in known and f.dataType != known[f.name]:
            raise SchemaError(
                f"column {f.name!r} of mamasub is {known[f.name].simpleString()}, not {f.dataType.simpleString()}; "
                f"leave .schema() out, or name columns of packed messages and of these: {columns}"
            )
        if f.name not in known and not takes_more:
            raise SchemaError(
                f"mamasub has no column {f.name!r} here, for no messages are unpacked; leave .schema() out, or choose "
                f"among {columns}"
            )
        if not f.nullable or not _may_be_null(field.type):
            raise SchemaError(f"column {f.name!r}: nulls must be allowed, inside it, too: a message may lack anything")
    names = [f.name for f in given.fields]
    if twice := {name for name in names if names.count(name) > 1}:
        raise SchemaError(f"the schema has two columns {sorted(twice)[0]!r}")
    keys = None if o.bucket is None else o.middleware.key_value
    of_topics: dict[str, Any] = {"operations": o.middleware.operations, "keys": keys}
    if decoded is None:
        typed = pa.schema([f for f in arrow if f.name not in known])
        return MessageColumns(arrow, typed, _mode(o, typed, "pack_error" in names), **of_topics)
    also = ([OPERATION] if o.current else []) + ([TRACE] if o.trace_context == "column" else [])
    own = {*_recorded_schema(decoded).names, *also}
    typed = pa.schema([f for f in arrow if f.name not in own])  # named by an option or by the user's schema
    fields = imported(decoded.fields)(typed, o) if decoded.fields else ()
    return MessageColumns(arrow, typed, decoded=decoded, fields=tuple(fields), **of_topics)


def _mode(o: SubscribeOptions, typed: pa.Schema, shows_errors: bool) -> str:
    if o.fail_on_corrupt:
        return "failfast"
    if not len(typed):
        if o.mode is not None:
            raise OptionError("option mode needs columns of packs in .schema(); without them, use failOnCorrupt")
        return "permissive"
    return o.mode or ("permissive" if shows_errors else "failfast")


def _may_be_null(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return bool(kind.item_field.nullable) and _may_be_null(kind.key_type) and _may_be_null(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return bool(kind.value_field.nullable) and _may_be_null(kind.value_type)
    if pa.types.is_struct(kind):
        return all(f.nullable and _may_be_null(f.type) for f in kind)
    return True
