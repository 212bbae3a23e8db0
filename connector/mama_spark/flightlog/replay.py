"""Reads the rows that failed, to publish them again, from a flight log with payloads or from a dead-letter table."""

from __future__ import annotations

import pyarrow as pa
from deltalake import QueryBuilder

from ..contracts.errors import FlightLogError
from ..contracts.message import HEADERS_TYPE
from .schema import IS_FAILED
from .storage import TableStore, reading_errors

#: Columns of the rows to publish again: those of the sink.
REPLAY = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("id", pa.string()),
    ]
)

_FROM_LOG = f"""
SELECT topic, payload AS value, headers, flight_id AS id FROM (
    SELECT *, row_number() OVER (PARTITION BY flight_id ORDER BY event_time DESC) AS nth
    FROM log WHERE kind = 'flight' AND {IS_FAILED} AND payload IS NOT NULL
) AS failed
WHERE nth = 1 AND flight_id IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM log AS ok WHERE ok.event = 'acked' AND ok.flight_id = failed.flight_id)
"""

_FROM_DEAD_LETTERS = """
SELECT topic, payload AS value, headers, flight_id AS id FROM (
    SELECT *, row_number() OVER (PARTITION BY flight_id ORDER BY event_time DESC) AS nth
    FROM log WHERE payload IS NOT NULL
) AS dead
WHERE nth = 1 AND flight_id IS NOT NULL
"""


def unpublished(path: str, storage: dict[str, str]) -> pa.Table:
    """Failed rows of the table at ``path``, with the ids under which they were published: those that were stored after
    all are not stored twice. Of a flight log, without the rows that a later attempt got acknowledged.

    :returns: columns of :data:`REPLAY`
    :raises FlightLogError: no such table, or one of another kind
    """
    with reading_errors(path, storage):
        table = TableStore(path, storage).table()
        if table is None:
            raise FlightLogError(f"{path}: there is no table")
        names = {f.name for f in table.schema().fields}
        if not {"flight_id", "topic", "payload", "headers"} <= names:
            raise FlightLogError(f"{path} is neither a flight log nor a dead-letter table")
        sql = _FROM_LOG if "event" in names else _FROM_DEAD_LETTERS
        found = pa.table(QueryBuilder().register("log", table).execute(sql))
    columns = [found.column(f.name).cast(f.type) for f in REPLAY]
    return pa.Table.from_arrays(columns, schema=REPLAY)
