"""What a task of ``mamasub`` makes of stored messages, without a log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.contracts.record_log import Records
from mama_spark.options import SubscribeOptions
from mama_spark.spark.subscribe.packed_rows import RowUnpacker
from mama_spark.spark.subscribe.schema import message_columns_of, schema_of
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

Headers = dict[str, str]
Message = tuple[str, bytes, Headers | None]
Row = dict[str, Any]


def options(**given: str) -> SubscribeOptions:
    return SubscribeOptions.parse({"url": "memory://x", "topics": ">", **given})


def records(*messages: Message) -> Records:
    """The first has sequence 5."""
    n = np.arange(len(messages))
    headers = [None if h is None else [(k, [v]) for k, v in h.items()] for _, _, h in messages]
    payloads = pa.array([p for _, p, _ in messages], pa.binary())
    topics = pa.array([t for t, _, _ in messages]).dictionary_encode()
    return Records(n + 5, n, topics, payloads, pa.array(headers, HEADERS_TYPE))


def batches_of(stored: Records, schema: StructType | None = None, **given: str) -> list[pa.RecordBatch]:
    o = options(**given)
    wanted = schema_of(o) if schema is None else schema
    unpacking = RowUnpacker(o, message_columns_of(wanted, o), "S")
    found = []
    for batch in unpacking.batches(stored):
        batch.validate(full=True)
        assert batch.schema.equals(to_arrow_schema(wanted, timezone="UTC"))
        found.append(batch)
    unpacking.finish()
    return found


def rows_of(stored: Records, schema: StructType | None = None, **given: str) -> list[Row]:
    return [row for batch in batches_of(stored, schema, **given) for row in batch.to_pylist()]


def rows(*messages: Message, schema: StructType | None = None, **given: str) -> list[Row]:
    return rows_of(records(*messages), schema, **given)
