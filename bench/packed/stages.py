"""How far a packed row goes, stage by stage: what each stage costs is the difference to the one before it.

``drop`` ends where Spark has handed its Arrow batches to Python; ``pack`` groups, packs and hashes the rows as the sink
does, and drops the packs; ``nolog`` publishes them; ``lines`` also keeps the flight log.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from mama_spark.options import SinkOptions
from mama_spark.publishing.ids.ids import IdMaker
from mama_spark.spark.sink.encoding.columns import plan_columns
from mama_spark.spark.sink.encoding.row_encoder import RowEncoder
from mama_spark.spark.sink.job import ColumnPlan
from mama_spark.spark.sink.last_form import GiveIds
from mama_spark.spark.sink.marks import MarkUnpackable
from mama_spark.spark.sink.open_write import PACKED_IDS_MEMORY, pack_codec
from mama_spark.spark.sink.packs import MakePacks
from mama_spark.spark.sink.stages import Stage, finished, through
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

_MAX_PAYLOAD = 1 << 20  #: of a NATS server as it comes


class PackWriter(DataSourceArrowWriter):
    def __init__(self, options: dict[str, str], plan: ColumnPlan) -> None:
        self._options, self._plan = options, plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        o, first, stages = SinkOptions.parse(self._options), 0, list[Stage]()
        encoder = RowEncoder(self._plan, o.topic, o.topic_prefix, for_packing=True)
        for rows in iterator:
            if not stages:
                packs = MakePacks(o, pack_codec(o, self._plan, rows.schema), _MAX_PAYLOAD)
                ids = GiveIds(IdMaker("bench", 0, 0, PACKED_IDS_MEMORY))
                stages = [MarkUnpackable(lines=o.pack == "lines"), packs, ids]
            for _ in through(stages, encoder.encode(rows, first)):
                pass
            first += rows.num_rows
        for _ in finished(stages):
            pass
        return WriterCommitMessage()


class PackSource(DataSource):
    """A format that packs as the sink does, and drops the packs; options as of the sink."""

    @classmethod
    def name(cls) -> str:
        return "benchpack"

    def writer(self, schema: StructType, overwrite: bool) -> PackWriter:
        options = dict(self.options)
        return PackWriter(options, plan_columns(schema, SinkOptions.parse(options)))
