"""Headers, limits and types of packed messages, versions 1 and 2. Pure; see ``docs/reference/packed-messages.md``."""

from __future__ import annotations

from enum import Enum

import pyarrow as pa

from ..contracts.errors import SchemaError
from ..contracts.message import HEADERS_TYPE, is_wide

#: Headers of a packed message: format and version, and number of rows (decimal).
PACK, PACK_ROWS = "Mama-Pack", "Mama-Pack-Rows"
#: Of a compressed pack, version 2: how lines are compressed, and bytes of the payload without compression (decimal).
PACK_ENCODING, PACK_BYTES = "Mama-Pack-Encoding", "Mama-Pack-Bytes"
#: Of a pack of a write with ``exactlyOnce``: the topic it was published to, for it may be stored under another one.
PACK_TOPIC = "Mama-Pack-Topic"
PACK_HEADERS = (PACK, PACK_ROWS, PACK_ENCODING, PACK_BYTES, PACK_TOPIC)
#: Value of ``Mama-Pack-Encoding`` -> codec of Arrow. ``lz4`` is the frame format.
ENCODINGS = {"lz4": "lz4", "zstd": "zstd"}

#: As with rows (:data:`~mama_spark.contracts.headers.MAX_PACK_ROWS`), of bytes without compression: the largest message
#: of NATS.
MAX_PLAIN_BYTES = 64 << 20

#: Bytes below the middleware's limit that a pack leaves free for its headers (format, rows, id).
HEADER_BYTES = 1_024

#: Columns of an arrow pack that carries messages; any other set of columns is typed rows.
VALUE, HEADERS, ID = "value", "headers", "id"
MESSAGE_TYPES = {VALUE: pa.binary(), HEADERS: HEADERS_TYPE, ID: pa.string()}


class PackFormat(Enum):
    LINES = "lines;v=1"  #: values joined by line feeds
    ARROW = "arrow;v=1"  #: an Arrow IPC stream of one record batch
    LINES_2 = "lines;v=2"  #: the same lines, compressed as a whole
    ARROW_2 = "arrow;v=2"  #: the same stream, with compressed buffers


class BadPack(Exception):
    """A message with headers of a pack whose payload is none. Internal: readers get the text with the row."""


def carries_messages(schema: pa.Schema) -> bool:
    """Whether the columns are a value and optionally headers and id; otherwise they are typed rows."""
    if VALUE not in schema.names or not set(schema.names) <= MESSAGE_TYPES.keys():
        return False
    return all(
        f.type == MESSAGE_TYPES[f.name] or canonical_type(f.type) == canonical_type(MESSAGE_TYPES[f.name])
        for f in schema
    )


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind) or is_wide(kind))


def canonical_type(kind: pa.DataType) -> pa.DataType:
    """The type without inner names and nullability, which differ between writers of Arrow, with 32-bit offsets and UTC
    as time zone."""
    if pa.types.is_map(kind):
        return pa.map_(canonical_type(kind.key_type), canonical_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(canonical_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, canonical_type(f.type)) for f in kind])
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind


def check_types(schema: pa.Schema) -> None:
    """Check that every row of each type costs bytes, so that no message can announce more rows than it carries.

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
    """Whether it is a decimal with a scale that Spark supports. Arrow reads outside of a table for others."""
    return bool(pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision)


_LEAVES = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, _is_decimal, is_text, pa.types.is_date,
    pa.types.is_time, pa.types.is_timestamp, pa.types.is_duration,
)  # fmt: skip
