"""The columns that a query names for fields of OpenMAMA messages, and the data dictionary that says their types."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from mama_spark.contracts.errors import ConfigError, OptionError
from mama_spark.contracts.record_log import RecordLogBridge
from mama_spark.mama.messages.omnm import BadMessage, decode
from mama_spark.mama.messages.typed_columns import TypedField, arrow_type_of, check_type
from mama_spark.openmama.wire.dictionary import DictionaryEntry, by_name, dictionary_of, dictionary_of_file
from mama_spark.openmama.wire.records import DICTIONARY, MamaRecordKind, decode_records
from mama_spark.options import SubscribeOptions
from mama_spark.publishing.window.reconnecting import ask_logs
from mama_spark.registry import logs_to_read

FEED = "feed"
_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(), "byte": pa.int8(),
    "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(),
    "bigint": pa.int64(), "long": pa.int64(),
    "float": pa.float32(), "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?\)")
_ARRAY = re.compile(r"array<(.+)>")


def type_named(text: str) -> pa.DataType | None:
    """The type of this name in Spark's SQL; None if no field can be a column of it."""
    low = text.strip().lower()
    if (array := _ARRAY.fullmatch(low)) is not None:
        element = type_named(array[1])
        return None if element is None or pa.types.is_list(element) else pa.list_(element)
    if (decimal := _DECIMAL.fullmatch(low)) is not None:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        return pa.decimal128(precision, scale) if 0 < precision <= 38 and scale <= precision else None
    return _TYPES.get(low)


def field_columns(o: SubscribeOptions) -> pa.Schema:
    """The columns of option ``fields``.

    :raises OptionError: a type is not known, or not given although there is no dictionary
    :raises ConfigError: the dictionary cannot be read, or lacks a field
    """
    dictionary = read_dictionary(o) if any(not kind for _, kind in o.fields) else {}
    return pa.schema([(name, _type_of(name, kind, o, dictionary)) for name, kind in o.fields])


def _type_of(name: str, kind: str, o: SubscribeOptions, dictionary: Mapping[str, DictionaryEntry]) -> pa.DataType:
    if kind:
        found = type_named(kind)
        if found is None:
            raise OptionError(f"option fields: {name} {kind}: no such type; give one of {', '.join(_TYPES)}, "
                              "decimal(p,s), array<...>")  # fmt: skip
        return found
    if o.dictionary is None:
        raise OptionError(f"option fields: {name} has no type; give one ({name} double), or option dictionary")
    if name not in dictionary:
        raise ConfigError(f"option fields: the dictionary ({o.dictionary}) has no field {name}; give its type")
    return arrow_type_of(dictionary[name].type)


def typed_fields(columns: pa.Schema, o: SubscribeOptions) -> list[TypedField]:
    """The fields to decode for these columns.

    :raises SchemaError: a field cannot be of this type
    :raises ConfigError: the dictionary cannot be read
    """
    for f in columns:
        check_type(f.name, f.type)
    dictionary = read_dictionary(o) if o.dictionary is not None and len(columns) else {}
    return [TypedField(f.name, f.type, dictionary[f.name].fid if f.name in dictionary else 0) for f in columns]


def read_dictionary(o: SubscribeOptions) -> Mapping[str, DictionaryEntry]:
    """The data dictionary of option ``dictionary``, by name; empty without it.

    :raises ConfigError: it cannot be read
    """
    if o.dictionary is None:
        return {}
    if o.dictionary.lower() == FEED:
        return by_name(ask_logs(o, lambda bridge: _of_feed(bridge, o)))
    return by_name(dictionary_of_file(o.dictionary, "option dictionary:"))


def _of_feed(bridge: RecordLogBridge, o: SubscribeOptions) -> list[DictionaryEntry]:
    streams = logs_to_read(o, bridge)
    for stream in streams:
        log = bridge.log(stream)
        bounds = log.bounds()
        newest: list[DictionaryEntry] = []
        for records in log.read(bounds.first - 1, bounds.last, (f"*.{DICTIONARY}.>",)):
            decoded = decode_records(records.payloads)
            for row in np.flatnonzero(decoded.heads["kind"] == MamaRecordKind.DICTIONARY).tolist():
                payload = bytes(memoryview(decoded.data)[int(decoded.begins[row]) : int(decoded.ends[row])])
                try:
                    newest = dictionary_of(decode(payload))
                except BadMessage:
                    continue
        if newest:
            return newest
    raise ConfigError(
        f"option dictionary=feed: no recorder wrote a dictionary into {', '.join(streams)}: its source serves none, or "
        "the recorder was told dictionary=off; give the path of a file"
    )
