"""The pipes that are compared. Each has a source that a publisher fills, a query, and a sink whose broker notes the
time at which it has stored each message."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.nats.settings import NatsSettings
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from scripts.fetch_kafka import java

from ..broker import Broker
from ..kafka import KafkaBroker, jars
from ..result import ROOT

Micros = npt.NDArray[np.int64]
#: Parts of a micro-batch, as Spark names them.
DURATIONS = ("latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets", "triggerExecution")
_ALL_STORED = 120.0  #: seconds after the last message in which the pipe must be empty


@dataclass(frozen=True)
class Load:
    """What is published.

    :ivar rate: messages a second
    :ivar warm_up: seconds that are published before anything is measured
    :ivar seconds: that are measured
    :ivar size: bytes a message, at least 8
    """

    rate: float
    warm_up: float
    seconds: float
    size: int


class Pipe(Protocol):
    """One way through a pair of brokers' streams."""

    def prepare(self, spark: SparkSession) -> None:
        """Empty source and sink."""
        ...

    def query(self, spark: SparkSession, work: Path) -> DataStreamWriter:
        """The query, without checkpoint and trigger."""
        ...

    def publisher(self, rate: float, seconds: float, size: int) -> list[str]:
        """The command that publishes, and prints how many."""
        ...

    def stored(self, spark: SparkSession) -> int:
        """Messages in the sink."""
        ...

    def times(self, spark: SparkSession) -> tuple[Micros, Micros]:
        """When each message of the sink was published, and when it was stored there: microseconds since the epoch."""
        ...


class NatsPipe:
    """``mamasub`` to ``mamapub``, with the defaults but for ``gcFreeze``."""

    def __init__(self, broker: Broker, *, log: bool) -> None:
        self._broker, self._log = broker, log

    def prepare(self, spark: SparkSession) -> None:
        for name in ("IN", "OUT"):
            if any(s["config"]["name"] == name for s in self._broker.api("STREAM.LIST").get("streams") or ()):
                self._broker.api(f"STREAM.DELETE.{name}")
        self._broker.restart()  # forget the ids
        for name in ("IN", "OUT"):
            self._broker.api(f"STREAM.CREATE.{name}", name=name, subjects=[f"{name.lower()}.>"], storage="file")

    def query(self, spark: SparkSession, work: Path) -> DataStreamWriter:
        source = spark.readStream.format("mamasub").option("url", self._broker.url).option("stream", "IN")
        rows = source.option("gcFreeze", True).load()
        writer = rows.selectExpr("replace(topic, 'in.', 'out.') AS topic", "value").writeStream
        writer = writer.format("mamapub").option("url", self._broker.url).option("gcFreeze", True)
        return writer.option("flightLog", str(work / "flights")) if self._log else writer

    def publisher(self, rate: float, seconds: float, size: int) -> list[str]:
        return [
            sys.executable, "-m", "bench.pipe.publisher", self._broker.url, "in", str(rate), str(seconds), str(size),
        ]  # fmt: skip

    def stored(self, spark: SparkSession) -> int:
        return int(self._broker.api("STREAM.INFO.OUT")["state"]["messages"])

    def times(self, spark: SparkSession) -> tuple[Micros, Micros]:
        with NatsLogs(NatsSettings(servers=(self._broker.url,))) as logs:
            log = logs.log("OUT")
            some = list(log.read(0, log.bounds().last))
        published = [_published(payload) for records in some for payload in records.payloads.to_pylist()]
        return np.array(published, np.int64), np.concatenate([records.times for records in some])


class KafkaPipe:
    """Spark's Kafka source to Spark's Kafka sink, acknowledged by all replicas."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker, self._runs = broker, 0

    @property
    def _topics(self) -> tuple[str, str]:
        return f"in-{self._runs}", f"out-{self._runs}"

    def prepare(self, spark: SparkSession) -> None:
        self._runs += 1
        for topic in self._topics:
            self._broker.create_topic(spark, topic, {"message.timestamp.type": "LogAppendTime"})

    def query(self, spark: SparkSession, work: Path) -> DataStreamWriter:
        rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self._broker.servers)
        rows = rows.option("subscribe", self._topics[0]).option("startingOffsets", "earliest")
        writer = rows.load().select("value").writeStream.format("kafka")
        writer = writer.option("kafka.bootstrap.servers", self._broker.servers).option("topic", self._topics[1])
        return writer.option("kafka.acks", "all")

    def publisher(self, rate: float, seconds: float, size: int) -> list[str]:
        program = str(ROOT / "bench" / "pipe" / "KafkaPublisher.java")
        given = [self._broker.servers, self._topics[0], str(rate), str(seconds), str(size)]
        return [java(), "-cp", ":".join(jars()["connector_jars"]), program, *given]

    def stored(self, spark: SparkSession) -> int:
        return self._broker.count(spark, self._topics[1])

    def times(self, spark: SparkSession) -> tuple[Micros, Micros]:
        rows = spark.read.format("kafka").option("kafka.bootstrap.servers", self._broker.servers)
        found = rows.option("subscribe", self._topics[1]).load().selectExpr("value", "unix_micros(timestamp) AS at")
        some = found.collect()
        return np.array([_published(r.value) for r in some], np.int64), np.array([r.at for r in some], np.int64)


def _published(payload: bytes) -> int:
    return int.from_bytes(payload[:8], "big")


def run(pipe: Pipe, spark: SparkSession, work: Path, checkpoint: Path, load: Load) -> dict[str, Any]:
    """Publish through the pipe; latencies and the durations of micro-batches, in milliseconds, after the warm-up.

    :raises RuntimeError: the query failed, or not every message arrived once
    """
    pipe.prepare(spark)
    query = pipe.query(spark, work).option("checkpointLocation", str(checkpoint)).start()
    try:
        command = pipe.publisher(load.rate, load.warm_up + load.seconds, load.size)
        began = datetime.now(UTC)
        sent = int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout)
        _wait_all_stored(pipe, spark, query, sent)
        progress = list(query.recentProgress)
    finally:
        query.stop()
    published, stored = pipe.times(spark)
    if len(published) != sent:
        raise RuntimeError(f"{sent} messages sent, {len(published)} in the sink")
    begin = began + timedelta(seconds=load.warm_up)
    counted = published >= begin.timestamp() * 1e6
    latencies = np.percentile((stored - published)[counted], (50, 90, 99)) / 1000
    batches = [p for p in progress if p["numInputRows"] and datetime.fromisoformat(p["timestamp"]) >= begin]
    return {
        "messages": int(counted.sum()),
        "latency_ms": dict(zip(("p50", "p90", "p99"), latencies.round(1).tolist(), strict=True)),
        "durations_ms": {name: [p["durationMs"].get(name, 0) for p in batches] for name in DURATIONS},
        "rows_a_batch": sum(p["numInputRows"] for p in batches) / max(1, len(batches)),
    }


def _wait_all_stored(pipe: Pipe, spark: SparkSession, query: StreamingQuery, sent: int) -> None:
    deadline = time.monotonic() + _ALL_STORED
    while pipe.stored(spark) < sent:
        if (error := query.exception()) is not None:
            raise RuntimeError(f"the query failed: {error}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"of {sent} messages, {pipe.stored(spark)} arrived within {_ALL_STORED:g} s")
        time.sleep(0.2)
    query.processAllAvailable()  # the commit of the last batch
