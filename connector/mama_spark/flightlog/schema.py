"""Columns of the flight log and of the dead-letter table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from ..contracts.errors import PERHAPS_TWICE, SchemaError
from ..contracts.message import HEADERS_TYPE

TIMESTAMP = pa.timestamp("us", "UTC")

#: Flight events; a ``uint8`` event column holds indexes into this.
EVENTS = ("published", "acked", "completed_exceptionally", "timeout")
#: Name of an outcome in reports -> its event.
OUTCOMES = {"acked": "acked", "published": "published", "failed": "completed_exceptionally", "timed_out": "timeout"}
PUBLISHED, ACKED, COMPLETED_EXCEPTIONALLY, TIMEOUT = range(4)
#: Events of failed flights: the message is not stored, or that is unknown.
FAILED = frozenset({COMPLETED_EXCEPTIONALLY, TIMEOUT})
IS_FAILED = f"event IN ({', '.join(repr(EVENTS[code]) for code in sorted(FAILED))})"
#: A message that failed and may be stored all the same. SQL.
IS_IN_DOUBT = f"(may_have_landed AND {IS_FAILED})"

#: A message that was sent again while a copy of it might still be stored. SQL.
IS_PERHAPS_TWICE = f"(event = 'acked' AND info LIKE '{PERHAPS_TWICE}%')"

#: The terminal event of each flight. ``published`` (``flightLogLevel=all``) is one only without acknowledgements. SQL.
IS_OUTCOME = "(kind = 'flight' AND (event <> 'published' OR ack_level = 'none'))"

PARTITION_COLUMNS = ("event_date", "committed")

_ATTEMPT = (
    pa.field("query_id", pa.string()),
    pa.field("run_id", pa.string()),
    pa.field("bridge", pa.string()),
    pa.field("batch_id", pa.int64()),
    pa.field("partition_id", pa.int32()),
    pa.field("task_attempt", pa.int32()),
)
#: Columns of a part file; ``flightLogColumns`` come between the second and the third group.
_BEFORE_EXTRA = (
    pa.field("kind", pa.string()),
    pa.field("flight_id", pa.string()),
    pa.field("event", pa.string()),
    pa.field("event_time", TIMESTAMP),
    pa.field("publish_time", TIMESTAMP),
    pa.field("latency_us", pa.int64()),
    pa.field("topic", pa.string()),
    pa.field("size", pa.int32()),
    pa.field("stream", pa.string()),
    pa.field("sequence", pa.int64()),
    pa.field("duplicate", pa.bool_()),
    pa.field("ack_level", pa.string()),
    pa.field("status", pa.string()),
    pa.field("code", pa.int32()),
    pa.field("info", pa.string()),
    pa.field("may_have_landed", pa.bool_()),
    pa.field("sends", pa.int32()),
    pa.field("dead_lettered", pa.bool_()),
    pa.field("rows", pa.int32()),
    pa.field("publisher_state", pa.string()),
    *_ATTEMPT,
)
_AFTER_EXTRA = (pa.field("payload", pa.binary()), pa.field("headers", HEADERS_TYPE))
_PARTITION = (pa.field("event_date", pa.date32()), pa.field("committed", pa.bool_()))

OWN_NAMES = frozenset(f.name for f in (*_BEFORE_EXTRA, *_AFTER_EXTRA, *_PARTITION))

#: Columns of the dead-letter table: rows that could not be published, in full.
DEAD_LETTERS = pa.schema(
    [
        pa.field("flight_id", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("payload", pa.binary()),
        pa.field("status", pa.string()),
        pa.field("code", pa.int32()),
        pa.field("info", pa.string()),
        pa.field("event_time", TIMESTAMP),
        *_ATTEMPT,
        *_PARTITION,
    ]
)


#: Column that holds what ``flightLogColumns`` names, for each row of a packed message.
PACKED_ROWS = "packed"


def packed_rows_field(fields: Sequence[pa.Field]) -> pa.Field:
    return pa.field(PACKED_ROWS, pa.list_(pa.struct(list(fields))))


def table_schema(extra: Sequence[pa.Field] = ()) -> pa.Schema:
    """The Arrow schema of the whole table.

    :param extra: the columns named by ``flightLogColumns``
    :raises SchemaError: if one of them has the name of a column of the flight log, or two have the same name
    """
    seen = {name.lower() for name in OWN_NAMES}
    for field in extra:
        if field.name.lower() in seen:
            raise SchemaError(
                f"flightLogColumns: column {field.name!r} has the name of a column of the flight log or stands twice; "
                f"rename it in the DataFrame"
            )
        seen.add(field.name.lower())
    nullable = [pa.field(f.name, f.type) for f in extra]
    return pa.schema([*_BEFORE_EXTRA, *nullable, *_AFTER_EXTRA, *_PARTITION])


def dead_letter_schema(extra: Sequence[pa.Field]) -> pa.Schema:
    """The Arrow schema of a dead-letter table; as :func:`table_schema`."""
    nullable = [f for f in table_schema(extra) if f.name not in OWN_NAMES]
    return pa.schema([*list(DEAD_LETTERS)[: -len(_PARTITION)], *nullable, *_PARTITION])


class TableKind(NamedTuple):
    """A flight log or a dead-letter table: the option that names it, and its schema by ``flightLogColumns``."""

    option: str
    schema: Callable[[Sequence[pa.Field]], pa.Schema]


FLIGHT_LOG = TableKind("flightLog", table_schema)
DEAD_LETTER_TABLE = TableKind("deadLetterTable", dead_letter_schema)


def part_schema(table: pa.Schema) -> pa.Schema:
    """Values of the partition columns are in the commit, not in the file."""
    return pa.schema([f for f in table if f.name not in PARTITION_COLUMNS])


def sql_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def sql_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
