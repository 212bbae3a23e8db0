"""What ``mamasub`` reads ``mamapub`` publishes to another stream: streams of all kinds, in batch and in streams."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually
from pyspark.sql import DataFrame, SparkSession

from tests.support.nats.forgotten_ids import WINDOW, forget_ids
from tests.support.nats.nats_servers import Admin
from tests.support.nats.plain_nats_connection import PlainNatsConnection
from tests.support.spark.attempts import values

PATIENCE = 240
ROWS = 12
MODES: list[dict[str, str]] = [
    {"ackMode": "message"},
    {"ackMode": "batch"},
    {"ackMode": "batch", "dedup": "false"},
    {"dedup": "false"},  # auto: fast ingest
    {"ackMode": "none", "dedup": "false"},
    {"order": "partition"},
    {"pack": "lines"},
]
#: Of the server: what a stream says when it stores a message.
OTHER_HEADERS = ("topic", "value", "map_filter(headers, (name, _) -> NOT name LIKE 'Nats-%') AS headers")
ALL = ("topic", "value", "headers")


@dataclass(frozen=True)
class Source:
    """What is read.

    :ivar refused: why no row of it is stored; ``""``: all are
    """

    options: dict[str, str]
    columns: tuple[str, ...]
    prefix: str = "in"
    refused: str = ""


SOURCES = {
    "transformed": Source({"topics": "out.>"}, ALL, prefix="out"),
    "sourced": Source({"stream": "SOURCED", "topics": "in.>"}, OTHER_HEADERS),
    "sourced, with the server's headers": Source(
        {"stream": "SOURCED"}, ALL, refused="is what a stream with sources writes"
    ),
    "mirrored": Source({"stream": "MIRROR", "topics": "in.>"}, OTHER_HEADERS),
    "of atomic batches": Source({"topics": "in.>"}, OTHER_HEADERS),
    "of atomic batches, with the server's headers": Source(
        {"topics": "in.>"}, ALL, refused="belongs to atomic batches, which are not published here"
    ),
}

USUAL = "sourced"


@pytest.fixture(scope="module")
def place(nats_server: NatsServer) -> Iterator[Admin]:
    """Streams with the same rows: of atomic batches, transformed, mirrored and sourced."""
    with Admin(nats_server.url) as admin, PlainNatsConnection(nats_server.url) as client:
        admin.create_stream("ATOMIC", ["in.>"], allow_atomic=True)
        admin.create_stream("CHANGED", ["taken.>"], subject_transform={"src": "taken.>", "dest": "out.>"})
        admin.create_stream("MIRROR", [], mirror={"name": "ATOMIC"})
        admin.create_stream("SOURCED", [], sources=[{"name": "ATOMIC"}])
        for n in range(ROWS):
            batch = {"Nats-Batch-Id": f"{n // 3}", "Nats-Batch-Sequence": f"{n % 3 + 1}", "Kept": f"{n}"}
            commit = {"Nats-Batch-Commit": "1"} if n % 3 == 2 else {}
            client.publish(f"in.{n}", client.inbox + b"a", b"row %d" % n, {**batch, **commit})
            client.message()
            client.publish(f"taken.{n}", client.inbox + b"a", b"row %d" % n)
            client.message()
        for name in ("MIRROR", "SOURCED"):
            eventually(lambda name=name: admin.info(name)["state"]["messages"] == ROWS, "the copy is complete")  # type: ignore[misc]
        yield admin
        for name in admin.api("STREAM.NAMES")["streams"]:
            admin.api(f"STREAM.DELETE.{name}")


@dataclass
class Copy:
    """A batch or a query that copies a source to the stream TO."""

    spark: SparkSession
    url: str
    source: Source
    options: dict[str, str]
    checkpoint: Path | None

    def run(self) -> None:
        """Again from the beginning: as if Spark had not committed."""
        reader = self.spark.read if self.checkpoint is None else self.spark.readStream
        rows = reader.format("mamasub").options(url=self.url, startingOffsets="earliest", **self.source.options).load()
        columns = [name for name in self.source.columns if self.options.get("pack") != "lines" or "headers" not in name]
        options = {"url": self.url, "topicPrefix": "to", **self.options}
        self._write(rows.selectExpr(*columns), options)

    def _write(self, rows: DataFrame, options: dict[str, str]) -> None:
        if self.checkpoint is None:
            rows.write.format("mamapub").options(**options).mode("append").save()
            return
        for commit in (self.checkpoint / "commits").glob("*0*"):
            commit.unlink()
        writer = rows.writeStream.format("mamapub").options(**options).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.checkpoint)).start()
        assert query.awaitTermination(PATIENCE)


def cells() -> Iterator[object]:
    """Each source in batch and as a stream, with and without ``exactlyOnce``, the modes in turn: all of them are tried
    without Spark."""
    with_ids = [mode for mode in MODES if mode.get("dedup") != "false"]
    modes = {False: itertools.cycle(MODES), True: itertools.cycle(with_ids)}
    for (name, source), streaming, once in itertools.product(SOURCES.items(), (False, True), (True, False)):
        way = f"{'stream' if streaming else 'batch'}{', exactlyOnce' if once else ''}"
        marks = () if once and streaming and name == USUAL else pytest.mark.thorough
        yield pytest.param(source, next(modes[once]), streaming, once, id=f"{name}, {way}", marks=marks)


@pytest.mark.parametrize(("source", "mode", "streaming", "once"), list(cells()))
def test_copies_have_each_row_once_or_say_why_not(
    spark: SparkSession,
    nats_server: NatsServer,
    place: Admin,
    tmp_path: Path,
    source: Source,
    mode: dict[str, str],
    streaming: bool,
    once: bool,
) -> None:
    place.create_stream("TO", ["to.>"], allow_batched=True, duplicate_window=WINDOW)
    job = {"txnAppId": str(tmp_path), "txnVersion": "1"} if once and not streaming else {}
    again = {"exactlyOnce": "true", "waitTimeout": "300ms", **job} if once else {}
    copy = Copy(spark, nats_server.url, source, {**mode, **again}, tmp_path / "checkpoint" if streaming else None)
    try:
        refused = "" if mode.get("pack") == "lines" else source.refused  # which has values only
        wanted = {} if refused else {(f"to.{source.prefix}.{n}", b"row %d" % n): 1 for n in range(ROWS)}
        for _ in range(2 if once else 1):
            with pytest.raises(Exception, match=refused) if refused else nullcontext():
                copy.run()
            eventually(lambda: values(place.messages("TO")) == wanted, "each row is stored once")
            forget_ids(place)
    finally:
        place.api("STREAM.DELETE.TO")
        place.api("STREAM.DELETE.MAMA_BATCHES")
