"""Names and limits of the format, version 1, as ``docs/reference/packed-messages.md`` specifies it."""

from __future__ import annotations

from enum import Enum

import pyarrow as pa

from ..errors import SchemaError
from ..message import HEADERS_TYPE

#: Headers of a packed message: its form and version, and how many rows it carries (decimal).
PACK, PACK_ROWS = "Mama-Pack", "Mama-Pack-Rows"

#: A reader refuses packs that announce more rows, whatever their size; a writer never makes them.
MOST_ROWS = 1_000_000

#: Room that a pack leaves below the middleware's limit for its headers (form, rows, id).
HEADER_BYTES = 1_024

#: Columns of an arrow pack that carries messages; any other set of columns is typed rows.
VALUE, HEADERS, ID = "value", "headers", "id"
MESSAGE = {VALUE: pa.binary(), HEADERS: HEADERS_TYPE, ID: pa.string()}


class PackFormat(Enum):
    """Value of the header ``Mama-Pack``."""

    LINES = "lines;v=1"  #: values joined by line feeds
    ARROW = "arrow;v=1"  #: an Arrow IPC stream of one record batch


class BadPack(Exception):
    """A message that says to be a pack and is none. Never leaves this room: readers get the text with the row."""


def carries_messages(schema: pa.Schema) -> bool:
    """Value, and perhaps headers and id, a row; otherwise the columns are typed rows."""
    if VALUE not in schema.names or not set(schema.names) <= MESSAGE.keys():
        return False
    return all(f.type == MESSAGE[f.name] or bare(f.type) == bare(MESSAGE[f.name]) for f in schema)


def bare(kind: pa.DataType) -> pa.DataType:
    """Without names and nullability of what is inside, which Arrow's writers choose differently; large offsets count
    as small ones, and an instant is an instant in any time zone."""
    if pa.types.is_map(kind):
        return pa.map_(bare(kind.key_type), bare(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(bare(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, bare(f.type)) for f in kind])
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind


def check_types(schema: pa.Schema) -> None:
    """Only types of which every row costs bytes, so that a message cannot announce more rows than it carries.

    :raises SchemaError: another type, or no columns at all
    """
    if not schema.names:
        raise SchemaError("an arrow pack needs a column")
    if len(set(schema.names)) < len(schema.names):
        raise SchemaError("an arrow pack cannot have two columns of one name")
    for field in schema:
        _check_type(field.name, field.type)


def _check_type(path: str, kind: pa.DataType) -> None:
    if pa.types.is_map(kind):
        _check_type(f"{path}.key", kind.key_type)
        _check_type(f"{path}.value", kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _check_type(f"{path}[]", kind.value_type)
    elif pa.types.is_struct(kind) and kind.num_fields:
        for field in kind:
            _check_type(f"{path}.{field.name}", field.type)
    elif not any(fits(kind) for fits in _LEAVES):
        raise SchemaError(f"column {path!r} of type {kind} cannot be in an arrow pack")


def _is_decimal(kind: pa.DataType) -> bool:
    """With a scale that Spark has, too. Arrow looks others up in a table that does not hold them."""
    return bool(pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision)


_LEAVES = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    _is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
)
