"""Decides on the driver, before any task runs, which column of the DataFrame becomes which part of a message."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.errors import PySparkException
from pyspark.sql import types as T

from mama_spark.contracts.errors import SchemaError
from mama_spark.contracts.message import RowCodec
from mama_spark.options import SinkOptions
from mama_spark.options.values import nearest
from mama_spark.packing.format import check_types
from mama_spark.registry import row_codec

from ...features import arrow_schema
from ..job import ColumnPlan

#: Columns that the sink uses by name, and their types, for people.
KNOWN = {
    "topic": "string",
    "value": "binary or string",
    "headers": "map<string,string>, map<string,array<string>> or array<struct<key:string,value:binary>>",
    "stream": "string",
    "root": "string",
    "source": "string",
    "symbol": "string",
}

#: Parts of a MAMA topic, in the order in which they are joined.
TOPIC_PARTS = ("root", "source", "symbol")


def plan_columns(schema: T.StructType, options: SinkOptions) -> ColumnPlan:
    """The plan for this DataFrame.

    :raises SchemaError: a column is missing, has the wrong type, or is used by no rule; names the column, what was
        expected, and the nearest name
    """
    by_name = _unique(schema)
    if not by_name:
        raise SchemaError("the DataFrame has no columns; mamapub needs at least a topic and something to publish")
    codec = row_codec(options)
    if codec is not None:
        return _plan_native(by_name, options, codec)
    if "stream" in by_name and not options.middleware.stream_of_each_row:
        raise SchemaError(
            f"column {by_name['stream'].name!r}: the {options.bridge_name} bridge finds the stream by the topic;"
            " use option stream"
        )
    id_field = _id_field(by_name, options)
    used = {low for low in KNOWN if low in by_name}
    parts = _topic_parts(by_name, options)
    if not parts:
        used -= set(TOPIC_PARTS)
    for low in used:
        _check_type(low, by_name[low])
    if id_field is not None and id_field.name.lower() == "id":
        used.add("id")  # no part of the JSON object
    log = tuple(_find(name, by_name).name for name in options.flight_log_columns)
    trace = _trace_field(by_name, options)
    rest = [f for low, f in by_name.items() if low not in used and f is not trace]
    value = by_name["value"].name if "value" in by_name else None
    typed: tuple[str, ...] = ()
    if options.pack == "lines":
        _check_lines(by_name, id_field)
    if value is not None:
        _refuse_unused([f for f in rest if f.name not in log and f is not id_field], options)
    elif options.pack == "arrow":
        typed = _typed([f for low, f in by_name.items() if low == "headers" or low not in used], options)
    else:
        _check_json_columns(rest)
    headers = by_name.get("headers")
    return ColumnPlan(
        topic=by_name["topic"].name if "topic" in by_name else None,
        parts=parts,
        value=value,
        json=() if value is not None or typed else tuple(f.name for f in rest),
        headers=headers.name if headers else None,
        headers_form=_headers_form(headers.dataType) if headers else "",
        id=None if id_field is None else id_field.name,
        log=log,
        stream=by_name["stream"].name if "stream" in by_name else None,
        typed=typed,
        trace=None if trace is None else trace.name,
    )


def _topic_parts(by_name: dict[str, T.StructField], options: SinkOptions) -> tuple[tuple[str, str], ...]:
    """Part of the topic and its column; empty: the option or the column ``topic`` is the topic.

    :raises SchemaError: both are given, or nothing is the topic
    """
    if "topic" in by_name:
        if options.topic is not None:
            raise SchemaError("both option topic and a column 'topic' are given; drop one of them")
        return ()
    if options.topic is not None:
        return ()
    if not {"source", "symbol"} & by_name.keys():
        raise SchemaError(
            "no column 'topic' (string)"
            + nearest("topic", [f.name for f in by_name.values()], "is it")
            + "; name it so, add columns source and symbol, or give the option topic"
        )
    return tuple((part, by_name[part].name) for part in TOPIC_PARTS if part in by_name)


def _id_field(by_name: dict[str, T.StructField], options: SinkOptions) -> T.StructField | None:
    """The column of option ``idColumn``. Integers are ids, too: their decimal text is one to one and the same in every
    session. Other types have several texts for a value, or texts that depend on settings."""
    if not options.id_column:
        return None
    field = _find(options.id_column, by_name, "idColumn")
    if not isinstance(field.dataType, T.StringType | T.IntegralType):
        raise SchemaError(
            f"option idColumn: column {field.name!r} must be string or an integer, it is "
            f'{field.dataType.simpleString()}; cast it: col("{field.name}").cast("string")'
        )
    return field


def _trace_field(by_name: dict[str, T.StructField], options: SinkOptions) -> T.StructField | None:
    if options.trace_column is None:
        return None
    field = _find(options.trace_column, by_name, "traceContext")
    if not isinstance(field.dataType, T.StringType):
        raise SchemaError(
            f"option traceContext: column {field.name!r} must be string, it is {field.dataType.simpleString()}"
        )
    return field


def _plan_native(by_name: dict[str, T.StructField], options: SinkOptions, codec: RowCodec) -> ColumnPlan:
    headers = by_name.pop("headers", None) if "headers" in codec.columns else None
    if headers is not None:
        _check_type("headers", headers)
    if options.trace_context != "off":
        raise SchemaError(f"option traceContext: messages of the {options.bridge_name} bridge have no headers")
    for low in codec.needed:
        if low not in by_name:
            raise SchemaError(
                f"no column {low!r} ({codec.columns[low]})" + nearest(low, [f.name for f in by_name.values()], "is it")
            )
    native = tuple((low, by_name[low].name) for low in codec.columns if low in by_name)
    log = tuple(_find(name, by_name).name for name in options.flight_log_columns)
    id_field = _id_field(by_name, options)
    others = [f for low, f in by_name.items() if low not in codec.columns and f is not id_field]
    if codec.takes_others:
        native += tuple((f.name, f.name) for f in others)
    else:
        _refuse_unused((f for f in others if f.name not in log), options, codec.columns)
    fields = [T.StructField(low, by_name[name.lower()].dataType) for low, name in native]
    try:
        codec.check(arrow_schema(T.StructType(fields)))
    except PySparkException as e:
        raise SchemaError(f"the {options.bridge_name} bridge: {e}") from e
    own_id = None if id_field is None else id_field.name
    form = "" if headers is None else _headers_form(headers.dataType)
    name = None if headers is None else headers.name
    return ColumnPlan(None, (), None, (), name, form, own_id, log, native=native)


def _check_lines(by_name: dict[str, T.StructField], id_field: T.StructField | None) -> None:
    for field in (by_name.get("headers"), id_field):
        if field is not None:
            raise SchemaError(
                f"column {field.name!r}: pack=lines carries values only; drop the column, or use pack=arrow"
            )


def _check_json_columns(columns: list[T.StructField]) -> None:
    if not columns:
        raise SchemaError("nothing to publish: no column 'value', and no other column that could become JSON")
    for f in columns:
        _check_json(f.name, f.dataType)


def _typed(columns: list[T.StructField], options: SinkOptions) -> tuple[str, ...]:
    if options.id_column:
        raise SchemaError(
            "option idColumn: without a column 'value', pack=arrow sends all columns as they are, a string column 'id' "
            "as the id of the row; leave the option out, or publish a column 'value'"
        )
    for f in columns:
        if f.name.lower() == "headers":
            raise SchemaError(
                f"column {f.name!r}: typed rows have no headers; rename the column, or publish a column 'value'"
            )
    if not [f for f in columns if f.name.lower() != "id"]:
        raise SchemaError("nothing to publish: no column 'value', and no other column that could travel as it is")
    for f in columns:
        _check_packable(f.name, f.dataType)
    try:
        check_types(arrow_schema(T.StructType(columns)))
    except PySparkException as e:
        raise SchemaError(f"pack=arrow: {e}") from e
    return tuple(f.name for f in columns)


def _check_packable(path: str, kind: T.DataType) -> None:
    """Raise for types that Arrow has only as the struct of their parts: a reader could not tell them from structs."""
    if isinstance(kind, T.StructType):
        for f in kind.fields:
            _check_packable(f"{path}.{f.name}", f.dataType)
    elif isinstance(kind, T.ArrayType):
        _check_packable(f"{path}[]", kind.elementType)
    elif isinstance(kind, T.MapType):
        _check_packable(f"{path}.key", kind.keyType)
        _check_packable(f"{path}.value", kind.valueType)
    elif kind.typeName() in _ONLY_IN_SPARK:
        raise SchemaError(
            f"column {path!r} of type {kind.simpleString()} cannot be in an arrow pack, whose readers would get its "
            "parts; cast it: to_json(v) for a variant, st_asbinary(g) for a geometry"
        )


#: Some releases of Spark lack some of these types.
_ONLY_IN_SPARK = {"variant", "geometry", "geography"}


def _unique(schema: T.StructType) -> dict[str, T.StructField]:
    by_name: dict[str, T.StructField] = {}
    for f in schema.fields:
        if f.name.lower() in by_name:
            raise SchemaError(f"two columns are named {f.name!r} (case does not count)")
        by_name[f.name.lower()] = f
    return by_name


def _find(name: str, by_name: dict[str, T.StructField], option: str = "flightLogColumns") -> T.StructField:
    if name.lower() not in by_name:
        raise SchemaError(
            f"option {option} names {name!r}, which is no column" + nearest(name, [f.name for f in by_name.values()])
        )
    return by_name[name.lower()]


def _check_type(low: str, field: T.StructField) -> None:
    kind = field.dataType
    if low == "value":
        fits = isinstance(kind, T.BinaryType | T.StringType)
    elif low == "headers":
        fits = bool(_headers_form(kind))
    else:
        fits = isinstance(kind, T.StringType)
    if not fits:
        advice = "" if low == "headers" else _advice(field)
        raise SchemaError(f"column {field.name!r} must be {KNOWN[low]}, it is {kind.simpleString()}{advice}")


def _advice(field: T.StructField) -> str:
    """Advice on a string of the column: a cast of a nested value gives text that nothing parses."""
    if isinstance(field.dataType, T.StructType | T.MapType | T.ArrayType | T.VariantType):
        return f'; make it JSON: to_json("{field.name}")'
    return f'; cast it: col("{field.name}").cast("string")'


def _headers_form(kind: T.DataType) -> str:
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        if isinstance(kind.valueType, T.StringType):
            return "map"
        if isinstance(kind.valueType, T.ArrayType) and isinstance(kind.valueType.elementType, T.StringType):
            return "multimap"
    if isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.StructType):
        fields = kind.elementType.fields
        if (
            [f.name.lower() for f in fields] == ["key", "value"]
            and isinstance(fields[0].dataType, T.StringType)
            and isinstance(fields[1].dataType, T.BinaryType)
        ):
            return "kafka"
    return ""


_NO_KEY = (
    '; messages have no key here as Kafka\'s have: make it a part of the topic (concat("orders.", key)), or a header '
    '(column headers: map("key", key))'
)


def _refuse_unused(unused: Iterable[T.StructField], options: SinkOptions, known: Iterable[str] = tuple(KNOWN)) -> None:
    names = [f.name for f in unused]
    if names and not options.ignore_unknown_columns:
        hint = nearest(names[0], known)
        if names[0].lower() == "id":
            may_be = options.id_column is None and options.pack != "lines"
            hint = f"; is it the message id? Set option idColumn={names[0]!r}" if may_be else ""
        if names[0].lower() == "key":
            hint = _NO_KEY
        raise SchemaError(
            f"column {names[0]!r} is used by no rule"
            + hint
            + "; drop it, name it in flightLogColumns, or set ignoreUnknownColumns=true"
            + (f" (also: {', '.join(map(repr, names[1:]))})" if names[1:] else "")
        )


def _check_json(path: str, kind: T.DataType) -> None:
    if isinstance(kind, T.StructType):
        if len(set(kind.names)) < len(kind.names):
            raise SchemaError(f"column {path!r} has two fields of one name, of which JSON would keep one; rename one")
        for f in kind.fields:
            _check_json(f"{path}.{f.name}", f.dataType)
    elif isinstance(kind, T.ArrayType):
        _check_json(f"{path}[]", kind.elementType)
    elif isinstance(kind, T.MapType):
        if not isinstance(kind.keyType, T.StringType):
            raise SchemaError(
                f"column {path!r}: JSON needs string keys in a map, these are {kind.keyType.simpleString()}"
            )
        _check_json(f"{path}{{}}", kind.valueType)
    elif not isinstance(kind, _JSON_TYPES) and kind != T.DayTimeIntervalType():
        raise SchemaError(f"column {path!r} of type {kind.simpleString()} has no JSON form; cast it to string")


_JSON_TYPES = (
    T.StringType,
    T.BinaryType,
    T.BooleanType,
    T.NumericType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.NullType,
)
