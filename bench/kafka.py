"""Kafka beside us: a single KRaft node from its Maven artifacts, and Spark's own sink and source for it."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession

from scripts.fetch_kafka import PLACE, java

PARTITIONS = 2
_TRIES = 3
_DELETED = 90.0  #: seconds in which the files of a topic that was deleted must be gone; Kafka first looks after 30
#: What "tuned" means: linger and batch size as people raise them for throughput, and memory for it.
TUNED = {"linger.ms": "50", "batch.size": "262144", "buffer.memory": "67108864"}

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/logs
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.segment.delete.delay.ms=1000
"""
_LOGGING = """\
rootLogger.level=warn
rootLogger.appenderRef.s.ref=S
appender.s.type=Console
appender.s.name=S
appender.s.layout.type=PatternLayout
appender.s.layout.pattern=%d %p %m%n
"""
#: The options with which Kafka's own scripts start it, and its usual heap.
_JAVA = ["-Xmx1g", "-Xms1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]


def jars() -> dict[str, Any]:
    """What ``scripts/fetch_kafka.py`` fetched: ``broker_jars``, ``connector_jars``, ``wanted``, ``token_stub``."""
    found: dict[str, Any] = json.loads(PLACE.read_text())
    return found


def free_ports(n: int) -> list[int]:
    held = [socket.socket() for _ in range(n)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [int(s.getsockname()[1]) for s in held]
    for s in held:
        s.close()
    return ports


class KafkaBroker:
    """One process; a topic a run, because deleting one is cheaper than emptying it. Its files go a second after
    it, not a minute: they would take memory and disk from the runs that follow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._runs, self._there = 0, False
        self.servers = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def topic(self) -> str:
        return f"bench-{self._runs}"

    def __enter__(self) -> Self:
        """:raises RuntimeError: it does not come up, also with other ports; says why"""
        for attempt in range(_TRIES):  # between the choice of a port and its use, somebody else may take it
            folder = self._folder / str(attempt)
            if self._started(folder):
                return self
        raise RuntimeError(f"Kafka does not listen after {_TRIES} tries: {(folder / 'log').read_text()[-3000:]}")

    def _started(self, folder: Path) -> bool:
        port, controller = free_ports(2)
        folder.mkdir(parents=True)
        properties = folder / "server.properties"
        properties.write_text(_PROPERTIES.format(port=port, controller=controller, folder=folder))
        (folder / "log4j2.properties").write_text(_LOGGING)
        command = [java(), *_JAVA, f"-Dlog4j2.configurationFile={folder}/log4j2.properties"]
        command += ["-cp", ":".join(jars()["broker_jars"])]
        storage = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAQACAAAAAAAAAAQ", "-c", str(properties)]
        formatted = subprocess.run([*command, *storage], check=False, capture_output=True, text=True)
        if formatted.returncode:
            raise RuntimeError(f"Kafka's folder cannot be formatted: {formatted.stdout}{formatted.stderr}"[-3000:])
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen([*command, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
        self.servers = f"127.0.0.1:{port}"
        if self._listens(port):
            return True
        self._stop()
        return False

    def _listens(self, port: int) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 0.3).close()
            except OSError:
                time.sleep(0.1)
            else:
                return True
        return False

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def new_topic(self, spark: SparkSession) -> None:
        """An empty topic; the one before is deleted."""
        self.delete_topic(spark)
        self._runs += 1
        self.create_topic(spark, self.topic)
        self._there = True

    def delete_topic(self, spark: SparkSession) -> None:
        """Delete this run's topic, if there is one, and wait until its files are gone."""
        if not self._there:
            return
        with self._admin(spark) as (jvm, admin):
            admin.deleteTopics(jvm.java.util.Collections.singletonList(self.topic)).all().get()
        self._there = False
        deadline = time.monotonic() + _DELETED
        while any(self._folder.glob(f"*/logs/{self.topic}-*")):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Kafka has not deleted the files of {self.topic} within {_DELETED:g} s")
            time.sleep(0.1)

    def create_topic(self, spark: SparkSession, name: str, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        with self._admin(spark) as (jvm, admin):
            topic = jvm.org.apache.kafka.clients.admin.NewTopic(name, PARTITIONS, 1).configs(dict(settings))
            admin.createTopics(jvm.java.util.Collections.singletonList(topic)).all().get()

    def count(self, spark: SparkSession, topic: str = "") -> int:
        """Records in a topic, this run's if none is named: nothing in it is compacted or transactional, so offsets
        tell."""
        topic = topic or self.topic
        with self._admin(spark) as (jvm, admin):
            latest = jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
            asked = jvm.java.util.HashMap()
            for i in range(PARTITIONS):
                asked.put(jvm.org.apache.kafka.common.TopicPartition(topic, i), latest)
            found = admin.listOffsets(asked).all().get()
            return sum(int(found.get(partition).offset()) for partition in asked.keySet())

    def stored_bytes(self) -> int:
        """Of the records of this run's topic."""
        return sum(file.stat().st_size for file in self._folder.glob(f"*/logs/{self.topic}-*/*.log"))

    @contextmanager
    def _admin(self, spark: SparkSession) -> Iterator[tuple[Any, Any]]:
        """Spark's JVM, and a client of the broker in it."""
        jvm = spark._jvm
        assert jvm is not None
        settings = jvm.java.util.Properties()
        settings.put("bootstrap.servers", self.servers)
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        try:
            yield jvm, admin
        finally:
            admin.close()

    # --- Spark's sink and source -----------------------------------------------------------------------------

    def write(self, df: DataFrame, settings: dict[str, str]) -> None:
        """Columns ``topic`` (the key) and ``value``; acknowledged by all replicas, as is the default."""
        writer = df.selectExpr("topic AS key", "value").write.format("kafka")
        writer = writer.option("kafka.bootstrap.servers", self.servers).option("topic", self.topic)
        writer = writer.option("kafka.acks", "all")
        for name, value in settings.items():
            writer = writer.option(f"kafka.{name}", value)
        writer.save()

    def read(self, spark: SparkSession) -> DataFrame:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", self.servers)
        return reader.option("subscribe", self.topic).option("minPartitions", PARTITIONS).load()
