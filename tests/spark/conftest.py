"""One Spark session a test process, with Delta, and with retries of tasks; one nats-server a test module."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mama_spark
import pytest
from mama_spark.cli.commands.jobs import delta_jars
from mama_spark.nats.server.nats_server import NatsServer
from pyspark.sql import SparkSession

from tests.support.malamute.restartable_broker import (
    RestartableBroker,
    RestartableMalamuteBroker,
    RestartableNatsServer,
)
from tests.support.mama.discovery_harness import ForeignAnnouncer
from tests.support.nats.nats_servers import Admin
from tests.support.spark.sink_harness import Background

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.authenticate.socketTimeout": "120s",  # Spark and Python wait so long for one another
    # not ports: a client that looks for its ended server may come to one that Spark has just been given for a worker
    "spark.python.unix.domain.socket.enabled": "true",
    # a query over a few rows costs less than the code that Spark would make for it
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # the other one, and checksums, would start hundreds of processes of `chmod` and `readlink` for files of checkpoints
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing"
    ".FileSystemBasedCheckpointFileManager",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """``local[2,4]``: tasks are retried, as on a cluster."""
    builder = SparkSession.builder.master("local[2,4]").appName("mama-tests")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    # named, as `mama jobs --delta-jars` names them: to look the package up, each session would start Ivy
    session = builder.config("spark.jars", ",".join(map(str, delta_jars()))).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    files = session._jvm.org.apache.hadoop.fs.FileSystem  # type: ignore[union-attr]
    files.getLocal(session._jsc.hadoopConfiguration()).setWriteChecksum(False)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A real server with JetStream on disk and messages of up to 16 MB; streams are the test's own business."""
    folder: Path = tmp_path_factory.mktemp("nats")
    with NatsServer(folder, config="max_payload: 16MB\n") as server:
        yield server


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[Admin]:
    """A client of the server; the streams of the test are dropped at its end."""
    if not nats_server.running:  # the test before failed while it was down
        nats_server.start()
    with Admin(nats_server.url) as client:
        yield client
        for name in client.api("STREAM.NAMES").get("streams") or []:
            client.api(f"STREAM.DELETE.{name}")


@pytest.fixture
def stranger(nats_server: NatsServer) -> Iterator[ForeignAnnouncer]:
    """Announces sources, and is none of ours; as :func:`admin`."""
    with ForeignAnnouncer(nats_server.url) as client:
        yield client
        client.delete(*client.api("STREAM.NAMES").get("streams") or [])


@pytest.fixture
def background(spark: SparkSession) -> Iterator[Background]:
    """Runs something in a thread."""
    with ThreadPoolExecutor(2, initializer=mama_spark.register, initargs=(spark,)) as threads:
        yield threads.submit


@pytest.fixture(scope="session")
def malamute_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableMalamuteBroker]:
    with RestartableMalamuteBroker(tmp_path_factory.mktemp("malamute") / "broker") as broker:
        yield broker


@pytest.fixture
def durable(malamute_broker: RestartableMalamuteBroker) -> RestartableMalamuteBroker:
    """A broker with durable streams, of this test's own."""
    return malamute_broker.fresh()


@pytest.fixture(params=["nats", "malamute"])
def room(request: pytest.FixtureRequest) -> Iterator[RestartableBroker]:
    """Each middleware that keeps what it gets, in turn, with streams of this test's own."""
    if request.param == "nats":
        with RestartableNatsServer(request.getfixturevalue("nats_server")) as nats:
            yield nats
    else:
        yield request.getfixturevalue("durable")
