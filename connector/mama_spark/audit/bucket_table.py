"""Compares a Delta table that follows a key-value bucket with the bucket, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, convert_to_deltalake

from ..contracts.errors import FlightLogError
from ..contracts.record_log import RecordLog
from ..flightlog.reading import Row, query
from ..flightlog.storage import TableStore, storage_errors
from ..options import SinkOptions
from ..registry import log_bridge, part

_STATE = pa.schema([("key", pa.string()), ("revision", pa.int64()), ("operation", pa.string())])
_EXAMPLES = 5
_QUESTION = f"""
WITH have AS (SELECT key, max(revision) AS revision, count(*) AS rows FROM log WHERE operation = 'put' GROUP BY key),
 last AS (SELECT *, row_number() OVER (PARTITION BY key ORDER BY revision DESC) AS number FROM bucket),
 wanted AS (SELECT key, revision FROM last WHERE number = 1 AND operation = 'put'),
 compared AS (SELECT coalesce(w.key, h.key) AS key, h.revision AS here, w.revision AS there,
  CASE WHEN h.rows IS NULL THEN 'in the bucket only' WHEN w.key IS NULL THEN 'in the table only'
   WHEN h.rows > 1 THEN 'more than once in the table'
   WHEN h.revision IS DISTINCT FROM w.revision THEN 'with another revision' ELSE 'equal' END AS kind
  FROM wanted w FULL OUTER JOIN have h ON w.key = h.key)
SELECT * FROM (SELECT *, count(*) OVER (PARTITION BY kind) AS n,
 row_number() OVER (PARTITION BY kind ORDER BY key) AS number FROM compared) WHERE number <= {_EXAMPLES}
 ORDER BY kind, number
"""


def compare_with_bucket(path: str, o: SinkOptions) -> list[tuple[bool, str]]:
    """Compare a table with a bucket: (equal?, text) of each check.

    :param path: path of the table, which has columns ``key``, ``revision`` and ``operation``
    :raises FlightLogError: the table is not there, or has other columns
    :raises ConfigError: the bucket is not there, or cannot be read
    :raises Unavailable: storage or middleware cannot be reached
    """
    with storage_errors(f"table {path}", o.storage_options):
        table = TableStore(path, o.storage_options).table()
    if table is None or not {*_STATE.names} <= {f.name for f in table.schema().fields}:
        what = "no Delta table there" if table is None else f"it lacks one of the columns {', '.join(_STATE.names)}"
        raise FlightLogError(f"{path}: {what}")
    buckets, operations_of = (part(o.bridge_name, name, "has no buckets") for name in ("key_value", "operations"))
    bridge = log_bridge(o, o.retry_deadline)
    bridge.open()
    try:
        with (
            TemporaryDirectory(prefix="mama-check-") as folder,
            pq.ParquetWriter(f"{folder}/0.parquet", _STATE) as file,
        ):
            log = bridge.log(buckets.stream_of(o.bucket))
            for some in _state(log, buckets.keys_of, operations_of):
                file.write_batch(some)
            file.close()
            convert_to_deltalake(folder)
            rows = query(table, o.storage_options, _QUESTION, bucket=DeltaTable(folder))
    finally:
        bridge.close()
    kinds = {kind: [*some] for kind, some in groupby(rows, itemgetter("kind"))}
    equal = kinds.pop("equal", [{"n": 0}])[0]["n"]
    found = [(True, f"table {path}: {equal:,} keys are as in bucket {o.bucket!r}")]
    return found + [(False, f"table {path}: {_text(some, kind)}") for kind, some in kinds.items()]


def _state(
    log: RecordLog, keys_of: Callable[[pa.Array], pa.Array], operations_of: Callable[[pa.Array | None, int], pa.Array]
) -> Iterator[pa.RecordBatch]:
    """The last change of each key."""
    for records in log.current():
        operations = operations_of(records.headers, len(records))
        keys = keys_of(records.topics.cast(pa.string()))
        yield pa.RecordBatch.from_arrays([keys, pa.array(records.sequences), operations], schema=_STATE)


def _text(rows: list[Row], what: str) -> str:
    n = rows[0]["n"]
    shown = [
        f"{row['key']}" + (f" ({row['here']}, {row['there']} in the bucket)" if what.startswith("with") else "")
        for row in rows
    ]
    return f"{n:,} {'key' if n == 1 else 'keys'} {what}: {', '.join(shown)}{', ...' if n > len(rows) else ''}"
