"""What the option ``metrics`` costs a write: processor time of whole partitions, with and without, in turns.

``scripts/in-env python -m bench.metrics_cost [--rows 300000] [--pairs 9]``. Each write publishes the rows of one
partition to a nats-server of its own, with ids and flight log as by default. What counts is the processor time of this
process, user and system: the median of the ratios of the pairs. On a busy machine these scatter by several percent, so
the time inside the instruments is measured, too, as a share of the write.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options import SinkOptions
from mama_spark.spark.sink.job import ColumnPlan, SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from mama_spark.telemetry.task_metrics import PublisherMetrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider

BATCH, PAYLOAD = 10_000, 100  #: rows, bytes
PLAN = ColumnPlan("topic", (), "value", (), None, "", None, ())


def provider() -> MeterProvider:
    """Named by the option ``metrics``."""
    return MeterProvider([PrometheusMetricReader()])


class Inside:
    """Processor time inside the instruments, of all writes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for name in ("finished", "update"):
            setattr(PublisherMetrics, name, self._measured(getattr(PublisherMetrics, name)))

    def _measured(self, call: Callable[..., None]) -> Callable[..., None]:
        def measured(*args: Any) -> None:
            began = time.thread_time()
            call(*args)
            self.seconds += time.thread_time() - began

        return measured


def rows(number: int, count: int) -> Iterator[pa.RecordBatch]:
    """Payloads that no other write has."""
    for first in range(0, count, BATCH):
        payload_bytes = np.zeros((BATCH, PAYLOAD), np.uint8)
        payload_bytes[:, :8] = np.arange(first, first + BATCH, dtype=">u8").view(np.uint8).reshape(-1, 8)
        payload_bytes[:, 8] = number
        offsets = np.arange(0, (BATCH + 1) * PAYLOAD, PAYLOAD, dtype=np.int32)
        values = pa.Array.from_buffers(pa.binary(), BATCH, [None, pa.py_buffer(offsets), pa.py_buffer(payload_bytes)])
        yield pa.record_batch({"topic": pa.repeat("bench.metrics", BATCH), "value": values})


def seconds(url: str, folder: Path, number: int, count: int, setup: str) -> float:
    """Processor time of one write."""
    o = SinkOptions.parse(
        {
            "url": url, "stream": "BENCH", "createStream": "true", "flightLog": str(folder / f"log{number}"),
            "metrics": setup, "waitTimeout": "120s",
        }
    )  # fmt: skip
    job = SinkJob(o, PLAN, False, f"run{number}", ())
    began = time.process_time()
    report = publish_partition(job, TaskInfo(0, 0, None, None, None, False, "bench", "bench"), rows(number, count))
    took = time.process_time() - began
    assert report.counts.acked == count, report.counts.sentence()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--pairs", type=int, default=9)
    args = parser.parse_args()
    count = max(1, args.rows // BATCH) * BATCH
    ratios, inside, whole, on = (
        [],
        Inside(),
        0.0,
        f"{__name__ if __name__ != '__main__' else 'bench.metrics_cost'}:provider",
    )
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder) / "nats") as server:
        for pair in range(-1, args.pairs):  # the first one warms up
            found = {}
            order = ["off", on] if pair % 2 else [on, "off"]
            for place, setup in enumerate(order):
                found[setup] = seconds(server.url, Path(folder), 2 * pair + place + 2, count, setup)
            if pair < 0:
                inside.seconds = 0.0
            else:
                whole += found[on]
                ratios.append(found[on] / found["off"])
                print(f"off {found['off']:.2f} s, on {found[on]:.2f} s: {100 * (ratios[-1] - 1):+.1f} %", flush=True)
    median = statistics.median(ratios)
    print(f"{args.pairs} pairs of {count:,} rows: metrics cost {100 * (median - 1):+.1f} % of processor time (median)")
    print(f"inside the instruments: {100 * inside.seconds / whole:.2f} % of the writes")


if __name__ == "__main__":
    main()
