"""Converts discovery rows to record batches of ``mamadiscovery``. Pure: Arrow only.

The Arrow schema must equal what Spark makes of the DDL: same names, types, order and nullability.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from mama_spark.mama.discovery.discovery_rows import DiscoveryRow

SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        ("source_name", pa.string()),
        ("source_id", pa.decimal128(20, 0)),
        ("source_state", pa.string()),
        ("source_data_state", pa.string()),
        ("source_qos_rate", pa.string()),
        ("source_qos_timeliness", pa.string()),
        ("source_data_dict", pa.string()),
        ("capabilities", pa.map_(pa.string(), pa.string())),
        ("topic", pa.string()),
        ("root", pa.string()),
        ("source", pa.string()),
        ("symbol", pa.string()),
        ("status", pa.string()),
        ("code", pa.int32()),
        ("info", pa.string()),
        ("gap_from", pa.int64()),
        ("gap_to", pa.int64()),
        ("raw", pa.binary()),
        ("origin", pa.string()),
        ("bridge", pa.string()),
        ("transport", pa.string()),
        ("event_time", pa.timestamp("us", "UTC")),
        ("sequence", pa.int64()),
    ]
)

DDL = (
    "kind STRING NOT NULL, event STRING NOT NULL, "
    "source_name STRING, source_id DECIMAL(20,0), source_state STRING, source_data_state STRING, "
    "source_qos_rate STRING, source_qos_timeliness STRING, source_data_dict STRING, "
    "capabilities MAP<STRING, STRING>, topic STRING, root STRING, source STRING, symbol STRING, "
    "status STRING, code INT, info STRING, gap_from BIGINT, gap_to BIGINT, raw BINARY, "
    "origin STRING, bridge STRING, transport STRING, event_time TIMESTAMP, sequence BIGINT"
)

BATCH = 4096  #: rows


def batches(rows: Iterable[DiscoveryRow]) -> Iterator[pa.RecordBatch]:
    """Rows in order, at most :data:`BATCH` a batch; none for no rows."""
    waiting: list[DiscoveryRow] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == BATCH:
            yield record_batch(waiting)
            waiting = []
    if waiting:
        yield record_batch(waiting)


def record_batch(rows: list[DiscoveryRow]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [_array(column, field) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _array(values: tuple[object, ...], field: pa.Field) -> pa.Array:
    if pa.types.is_map(field.type):
        values = tuple(None if v is None else list(v.items()) for v in values)  # type: ignore[attr-defined]
    return pa.array(values, field.type)
