"""Writes what a release leaves on disk, for ``tests/spark/test_older_releases.py``; run it with that release's code.

``scripts/in-env python record.py FOLDER`` runs, for NATS and for the Malamute broker, a pipe ``mamasub`` -> ``mamapub``
with a flight log and a source that is announced, and a query of ``mamadiscovery``, and keeps the servers' stores, the
checkpoints and the flight logs. It uses only commands and formats, which every release has.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import Row, SparkSession

BROKER = """
[[stream]]
pattern = "^(incoming|outgoing)$"
engine = "durable"
folder = "{store}"
[events]
folder = "{store}"
"""


@contextmanager
def server(command: list[str]) -> Iterator[str]:
    """The URL of a server that is ready."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                found = re.search(r"(nats|mlp)://127\.0\.0\.1:\d+", line)
                if found:
                    yield found[0]
                    break
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def publish(spark: SparkSession, where: dict[str, str], first: int, n: int) -> None:
    """Rows ``first`` to ``first + n - 1`` into the stream ``incoming``."""
    rows = spark.range(first, first + n).selectExpr("concat('in.', id % 3) AS topic", "cast(id AS string) AS value")
    rows.write.format("mamapub").options(**where).option("createStream", "true").mode("append").save()


def pipe(spark: SparkSession, source: dict[str, str], sink: dict[str, str], folder: Path) -> None:
    """One run over everything there is."""
    messages = spark.readStream.format("mamasub").options(**source).load()
    changed = messages.selectExpr("concat('out.', substring(topic, 4)) AS topic", "value", "sequence AS read_as")
    query = (
        changed.writeStream.format("mamapub")
        .options(**sink, createStream="true", announce="true", sourceName="pipe", flightLogColumns="read_as")
        .option("flightLog", str(folder / "flight_log"))
        .option("checkpointLocation", str(folder / "pipe"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def discover(spark: SparkSession, url: str, folder: Path) -> list[Row]:
    """All changes since the last run."""
    found: list[Row] = []
    changes = spark.readStream.format("mamadiscovery").option("url", url).load()
    query = (
        changes.writeStream.foreachBatch(lambda frame, batch: found.extend(frame.collect()))
        .option("checkpointLocation", str(folder / "discovery"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found


@dataclass(frozen=True)
class Middleware:
    """One middleware with its store, and the options for its two streams."""

    folder: Path

    def command(self, scratch: Path) -> list[str]:
        """Starts its server; ``scratch`` takes a configuration file."""
        store = self.folder / "store"
        if self.folder.name == "nats":
            return ["mama", "serve", "--port", "0", "--store", str(store)]
        conf = scratch / "broker.toml"
        conf.write_text(BROKER.format(store=store))
        return ["mama", "broker", "--bind", "tcp://127.0.0.1:*", "--conf-file", str(conf)]

    def options(self, url: str, stream: str, topics: str | None = None) -> dict[str, str]:
        if self.folder.name == "nats":
            return {"url": url, **({"topics": topics} if topics else {})}
        return {"url": f"{url}/{stream}"}

    def run(self, spark: SparkSession, url: str, first: int) -> None:
        """Ten rows in, and through the pipe."""
        publish(spark, self.options(url, "incoming"), first, 10)
        pipe(spark, self.options(url, "incoming", "in.>"), self.options(url, "outgoing"), self.folder)


def main(folder: Path) -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    for name in ("nats", "malamute"):
        middleware = Middleware(folder / name)
        middleware.folder.mkdir(parents=True)
        with TemporaryDirectory() as scratch, server(middleware.command(Path(scratch))) as url:
            middleware.run(spark, url, 0)
            middleware.run(spark, url, 10)
            print(discover(spark, url, middleware.folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
