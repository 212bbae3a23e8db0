"""How far a packed row goes, stage by stage: what each stage costs is the difference to the one before it.

``drop`` ends where Spark has handed its Arrow batches to Python; ``pack`` groups, packs and hashes the rows as the sink
does, and drops the packs; ``nolog`` publishes them; ``lines`` also keeps the flight log.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from mama_spark.contracts.bridge import Ack, Capabilities
from mama_spark.options import SinkOptions
from mama_spark.publishing.ids.ids import IdMaker
from mama_spark.spark.sink.encoding.column_plan import ColumnPlan
from mama_spark.spark.sink.encoding.columns import plan_columns
from mama_spark.spark.sink.packed_messages import PackedMessages
from mama_spark.spark.sink.partition_writer import PACKED_IDS_MEMORY
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

#: Of a NATS server as it comes.
_NATS = Capabilities(
    ack=Ack.STORED, sequence=True, dedup=True, headers=True, ordered=False, max_payload=1 << 20, max_topic=4_000
)


class PackWriter(DataSourceArrowWriter):
    def __init__(self, options: dict[str, str], plan: ColumnPlan) -> None:
        self._options, self._plan = options, plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        packs: PackedMessages | None = None
        ids, first = IdMaker("bench", 0, 0, PACKED_IDS_MEMORY), 0
        for rows in iterator:
            if packs is None:
                packs = PackedMessages(SinkOptions.parse(self._options), self._plan, rows.schema, _NATS)
            for load in packs.encode(rows, first):
                ids.ids(load.batch)
            first += rows.num_rows
        for load in packs.finish() if packs is not None else ():
            ids.ids(load.batch)
        return WriterCommitMessage()


class PackSource(DataSource):
    """A format that packs as the sink does, and drops the packs; options as of the sink."""

    @classmethod
    def name(cls) -> str:
        return "benchpack"

    def writer(self, schema: StructType, overwrite: bool) -> PackWriter:
        options = dict(self.options)
        return PackWriter(options, plan_columns(schema, SinkOptions.parse(options)))
