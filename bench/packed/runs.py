"""Runs of ``bench.packed``: each is measured, and its rows are counted at the broker: messages by the stream, packed
rows by the header of each message, Kafka by its offsets. One row too many or too few ends the bench.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame

from ..broker import Broker
from ..contenders import flight_log
from ..kafka import PARTITIONS, TUNED, jars
from ..machine import Meter, rounds, wait_until_quiet
from ..result import run_record
from .ways import WAYS, ReadWay, Way, Workload, found_in, frame, keep_batches, memory, packed_rows

READ_ROWS = {100: 2_000_000, 1000: 700_000}  #: by bytes a value
_PATIENCE = 4.0  #: seconds that a run waits for others to become quiet


@dataclass
class PackedBench:
    """What all runs share. ``runs`` collects one record a run."""

    stage: Workload
    broker: Broker
    scale: float
    patient: bool
    runs: list[dict[str, Any]] = field(default_factory=list)

    def _meter(self) -> Meter:
        kafka = self.stage.kafka
        return Meter(self.broker.pid, *([] if kafka is None else [kafka.pid]))

    def keep(self, record: dict[str, Any]) -> None:
        """Record a run; that of round -1 warmed up and is dropped."""
        if record["round"] >= 0:
            self.runs.append(record)
            print(f"  {record['name']:14s} {record['size']:5d} B  {record['rate']:10,.0f} rows/s", flush=True)

    def publish(
        self, way: Way, size: int, rows: int, round_: int, *, whole: bool = False, df: DataFrame | None = None
    ) -> dict[str, Any]:
        """One run, measured.

        :param whole: unpack what was stored
        :param df: so many rows; None = those of :func:`.ways.frame`
        """
        stage, log = self.stage, flight_log(self.stage.work)
        self.broker.purge()
        if way.where == "kafka":
            assert stage.kafka is not None
            stage.kafka.new_topic(stage.spark)
        shutil.rmtree(log, ignore_errors=True)
        df = frame(stage.spark, rows, size) if df is None else df
        os.sync()  # what was written before this run is not written to the disk during it
        if round_ >= 0 and self.patient:
            wait_until_quiet(patience=_PATIENCE)
        with self._meter() as meter:
            way.publish(stage, df, rows, size)
        stored = self._stored(way, whole)
        if stored is not None and stored != rows:
            raise RuntimeError(f"{way.name}: {rows} rows sent, {stored} at the broker")
        record = run_record(way.name, size, round_, rows, meter)
        if log.exists():
            record["log_bytes_per_row"] = sum(f.stat().st_size for f in log.rglob("*") if f.is_file()) / rows
        record["stored_bytes_per_row"] = self._stored_bytes(way) / rows
        if way.where == "kafka" and stage.kafka is not None:
            stage.kafka.delete_topic(stage.spark)
        if way.forget:
            self.broker.purge()
            self.broker.restart()
        return record

    def _stored_bytes(self, way: Way) -> int:
        if way.where == "kafka":
            assert self.stage.kafka is not None
            return self.stage.kafka.stored_bytes()
        return self.broker.stored_bytes() if way.where else 0

    def _stored(self, way: Way, whole: bool) -> int | None:
        if way.where == "packs":
            return packed_rows(self.broker.url, whole)
        if way.where == "nats":
            return self.broker.count()
        if way.where == "kafka":
            assert self.stage.kafka is not None
            return self.stage.kafka.count(self.stage.spark)
        return None

    def publishing(self, ways: list[Way], sizes: list[int], n: int, minutes: float) -> None:
        """Rounds of all sizes together, so that what runs out of time has as many of each."""
        todo = [(way, size) for size in sizes for way in ways if size in way.rows]
        for round_ in rounds(n, "publishing", minutes) if todo else ():
            for way, size in random.sample(todo, len(todo)):
                rows = max(2_000, int(way.rows[size] * self.scale))
                warm_up = round_ < 0
                self.keep(self.publish(way, size, max(2_000, rows // 20) if warm_up else rows, round_, whole=warm_up))

    def fill(self, size: int, rows: int, way: str = "arrow") -> None:
        """What the readers read, at both brokers and in memory.

        :param way: that publishes to NATS
        """
        stage, ways = self.stage, {w.name: w for w in WAYS}
        self.publish(ways[way], size, rows, -1)
        keep_batches(stage)
        if stage.kafka is not None:
            stage.kafka.new_topic(stage.spark)
            ways["kafka-tuned"].publish(stage, frame(stage.spark, rows, size), rows, size)

    def read(self, way: ReadWay, size: int, rows: int, round_: int, times: int = 1) -> dict[str, Any]:
        """One run, measured.

        :param times: how often the rows are read
        """
        if round_ >= 0 and self.patient:
            wait_until_quiet(patience=_PATIENCE)
        with self._meter() as meter:
            found = found_in(reduce(DataFrame.union, [way.read(self.stage) for _ in range(times)]))
        if found != (rows * times, rows * times * size):
            raise RuntimeError(f"{way.name}: of {rows * times} rows of {size} bytes came (rows, bytes) {found}")
        return run_record(way.name, size, round_, rows * times, meter)

    def reading(self, ways: list[ReadWay], size: int, n: int) -> None:
        """All read the same rows; ``memory`` yields what ``mamasub`` would."""
        rows = max(2_000, int(READ_ROWS[size] * self.scale))
        self.fill(size, rows)
        for round_ in rounds(n, f"reading {size} B"):
            for way in random.sample(ways, len(ways)):
                self.keep(self.read(way, size, rows, round_))
        shutil.rmtree(memory(self.stage.work))


def kafka_facts() -> dict[str, Any]:
    found = jars()
    client = next(jar for jar in found["connector_jars"] if "kafka-clients" in jar)
    return {
        "broker": found["wanted"]["broker"].split(",")[0].rpartition(":")[2],
        "clients": client.rpartition("-")[2].removesuffix(".jar"),
        "connector": found["wanted"]["connector"].rpartition(":")[2],
        "token_stub": found["token_stub"],
        "tuned": TUNED,
        "partitions": PARTITIONS,
    }
