"""``python -m bench.packed.road``: what a packed row costs the client without Spark, step by step.

The classes of the sink and of the source in one process, with the rows of :mod:`bench.packed.ways` as Spark hands them
over: processor time and page faults a row, which do not depend on how busy the machine is with other things as much as
a rate does. ``group`` makes packs, ``ids`` hashes them, too, ``publish`` does all until every pack is acknowledged, and
``read`` makes Arrow batches of them again.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from mama_spark.contracts.bridge import PublisherBridge
from mama_spark.options import SinkOptions
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.ids.ids import IdMaker
from mama_spark.registry import publisher_bridge
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.sink.encoding.columns import plan_columns
from mama_spark.spark.sink.encoding.row_encoder import RowEncoder
from mama_spark.spark.sink.last_form import GiveIds
from mama_spark.spark.sink.marks import MarkUnpackable
from mama_spark.spark.sink.open_write import MAX_BYTES_IN_FLIGHT, PACKED_IDS_MEMORY, pack_codec
from mama_spark.spark.sink.packs import MakePacks
from mama_spark.spark.sink.stages import SinkBatch, Stage, finished, through
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from ..broker import Broker
from .ways import TOPICS

SCHEMA = StructType([StructField("topic", StringType()), StructField("value", BinaryType())])
BATCH_ROWS = 10_000  #: of one Arrow batch of Spark
STEPS = ("group", "ids", "publish", "read")


def batches(size: int) -> list[pa.RecordBatch]:
    """Some that are used in turn; random values, topics in turn."""
    random = np.random.default_rng(size)
    topics = pa.array([f"b.s{10 + i % TOPICS}" for i in range(BATCH_ROWS)])
    offsets = pa.py_buffer(np.arange(0, (BATCH_ROWS + 1) * size, size, dtype=np.int32))
    made = []
    for _ in range(4):
        raw = pa.py_buffer(random.integers(32, 120, BATCH_ROWS * size, dtype=np.uint8))
        values = pa.Array.from_buffers(pa.binary(), BATCH_ROWS, [None, offsets, raw])
        made.append(pa.RecordBatch.from_arrays([topics, values], ["topic", "value"]))
    return made


class Road:
    """One format and size."""

    def __init__(self, url: str, pack: str, size: int) -> None:
        self.options = SinkOptions.parse({"url": url, "pack": pack})
        self._url, self._batches = url, batches(size)

    def _packs(
        self, rows: int, bridge: PublisherBridge, *more: Stage, take: Callable[[SinkBatch], object] = lambda _: None
    ) -> None:
        o = self.options
        plan = plan_columns(SCHEMA, o)
        encoder = RowEncoder(plan, o.topic, o.topic_prefix, for_packing=True)
        codec = pack_codec(o, plan, self._batches[0].schema)
        packs = MakePacks(o, codec, bridge.capabilities.max_payload)
        stages = [MarkUnpackable(lines=o.pack == "lines"), packs, *more]
        for i in range(rows // BATCH_ROWS):
            for one in through(stages, encoder.encode(self._batches[i % len(self._batches)], i * BATCH_ROWS)):
                take(one)
        for one in finished(stages):
            take(one)

    def group(self, rows: int, bridge: PublisherBridge) -> None:
        self._packs(rows, bridge)

    def ids(self, rows: int, bridge: PublisherBridge) -> None:
        self._packs(rows, bridge, GiveIds(IdMaker("bench", 0, 0, PACKED_IDS_MEMORY)))

    def publish(self, rows: int, bridge: PublisherBridge) -> None:
        ids = GiveIds(IdMaker(uuid.uuid4().hex, 0, 0, PACKED_IDS_MEMORY))
        window = self.options.window.for_bridge(bridge.capabilities, with_ids=True)
        publisher = BatchPublisher(bridge, replace(window, max_bytes=MAX_BYTES_IN_FLIGHT), on_finished=lambda _: None)
        publisher.start()
        self._packs(rows, bridge, ids, take=lambda one: publisher.put(one.messages, one.rejected, one))
        publisher.drain()

    def read(self, rows: int, bridge: PublisherBridge) -> None:
        source = MamaSubDataSource({"url": self._url, "topics": "b.>", "minPartitions": "1"})
        reader = source.reader(source.schema())
        found = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
        if found != rows:
            raise RuntimeError(f"{rows} rows were published, {found} were read")


def measured(step: Callable[[], None], rows: int) -> tuple[float, float, float]:
    """Microseconds in user space and in the kernel, and page faults, each a row."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    user, kernel = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return user / rows * 1e6, kernel / rows * 1e6, (after.ru_minflt - before.ru_minflt) / rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.packed.road", description=__doc__)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="1000,100")
    args = parser.parse_args(argv)
    rows = max(1, args.rows // BATCH_ROWS) * BATCH_ROWS
    print("| bytes | format | step | user µs a row | kernel µs a row | page faults a row |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="mama-road-") as work, Broker(Path(work)) as broker:
        for size in map(int, args.sizes.split(",")):
            for pack in ("lines", "arrow"):
                road, found = Road(broker.url, pack, size), {step: list[tuple[float, float, float]]() for step in STEPS}
                for round_ in range(args.rounds + 1):
                    broker.purge()
                    bridge = publisher_bridge(road.options)
                    bridge.open()
                    for step in STEPS:
                        run = getattr(road, step)
                        numbers = measured(lambda run=run, bridge=bridge: run(rows, bridge), rows)  # type: ignore[misc]
                        if round_:  # the first warms up
                            found[step].append(numbers)
                    bridge.close()
                for step, runs in found.items():
                    user, kernel, faults = map(median, zip(*runs, strict=True))
                    print(f"| {size:,} | {pack} | {step} | {user:.2f} | {kernel:.2f} | {faults:.3f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
