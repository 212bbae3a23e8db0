"""``mamasub`` from the durable streams of a Malamute broker: each message a row, once, whatever happens in between."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import zmq
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.broker.broker.security import Security
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from tests.support.malamute.broker_process import BrokerProcess

PATIENCE = 120
_STREAMS = itertools.count(1)
#: Of somebody whom no broker knows.
KEYS = [key.decode() for key in zmq.curve_keypair()]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), "^s[0-9]+$") as process:
        yield process


@pytest.fixture
def stream(process: BrokerProcess) -> str:
    """A stream of this test's own."""
    if not process.running:
        process.start()
    return f"s{next(_STREAMS)}"


def batch(n: int, first: int = 0) -> MessageBatch:
    return MessageBatch.of(
        [f"temp.{i % 4}" for i in range(first, first + n)], [b"%d" % i for i in range(first, first + n)]
    )


def reads(spark: SparkSession, url: str, **options: str) -> list[Row]:
    found = spark.read.format("mamasub").options(url=url, **options).load().collect()
    return sorted(found, key=lambda row: row.sequence)


def failure(spark: SparkSession, url: str, **options: str) -> str:
    with pytest.raises(PySparkException) as e:
        reads(spark, url, **options)
    return str(e.value)


@pytest.mark.spec("ML-15", "ML-22")
def test_what_mamapub_wrote_is_read_back_row_for_row(spark: SparkSession, process: BrokerProcess, stream: str) -> None:
    sent = spark.range(0, 200, 1, 2).selectExpr(
        "concat('orders.r', cast(id % 7 as string)) AS topic",
        "cast(concat('row ', id) as binary) AS value",
        "IF(id % 3 = 0, map('Kind', array('a', 'b'), 'Gruß', array('ü')), NULL) AS headers",
        "concat('id-', id) AS id",
    )
    url = f"{process.url}/{stream}"
    sent.write.format("mamapub").options(url=url, idColumn="id").mode("append").save()
    back = spark.read.format("mamasub").options(url=url).load()
    columns = ["topic", "value", "headers", "stream", "sequence", "pack_index", "timestamp", "id", "pack_error"]
    assert back.columns == columns
    found = back.collect()
    want = {(r.topic, bytes(r.value), json.dumps(r.headers), r.id) for r in sent.collect()}
    assert {(r.topic, bytes(r.value), json.dumps(r.headers), r.id) for r in found} == want
    assert sorted(r.sequence for r in found) == list(range(1, 201))
    assert {r.stream for r in found} == {stream}
    now = datetime.now()
    assert all(now - timedelta(hours=1) < r.timestamp <= now + timedelta(minutes=1) for r in found)


@pytest.mark.spec("ML-27")
@pytest.mark.parametrize("mechanism", ["PLAIN", "CURVE"])
def test_who_may_writes_and_reads_back_over_a_secured_connection(
    spark: SparkSession, tmp_path: Path, mechanism: str
) -> None:
    """By the options of the format; who may not is told why, and no secret is told to anybody."""
    (_, secret), (mine, my_secret) = ([key.decode() for key in zmq.curve_keypair()] for _ in range(2))
    plain = mechanism == "PLAIN"
    security = Security({"u": "hush"}) if plain else Security(curve_secret_key=secret, curve_clients=(mine,))
    login = {"user": "u", "password": "hush"}
    server = security.curve_public_key or KEYS[0]
    keys = {"curveServerKey": server, "curvePublicKey": mine, "curveSecretKey": my_secret}
    engines = (EngineChoice(b"^s$", "durable", {"folder": str(tmp_path)}),)
    with Broker(BrokerSettings("tcp://127.0.0.1:*", engines=engines, security=security, linger=0.5)) as broker:
        options = {"url": f"{broker.endpoint.replace('tcp', 'mlp')}/s", **(login if plain else keys)}
        sent = spark.range(0, 20, 1, 2).selectExpr("concat('t.', id) AS topic", "cast(id AS string) AS value")
        sent.write.format("mamapub").options(**options).mode("append").save()
        found = reads(spark, **options)
        assert {(r.topic, bytes(r.value).decode()) for r in found} == {(r.topic, r.value) for r in sent.collect()}
        wrong = (
            {"password": "hush-hush"} if plain else dict(zip(("curvePublicKey", "curveSecretKey"), KEYS, strict=True))
        )
        said = failure(spark, **{**options, **wrong})
        assert "the broker refused the login" in said
        assert "another security mechanism" in failure(spark, options["url"], **(keys if plain else login))
        assert not any(word in said for word in ("hush", my_secret, KEYS[1]))


@pytest.mark.spec("ML-12")
def test_a_batch_takes_what_topics_pattern_and_offsets_select(
    spark: SparkSession, process: BrokerProcess, stream: str
) -> None:
    process.store(stream, batch(400))
    given = {"url": process.url, "stream": stream}
    assert [r.sequence for r in reads(spark, **given, topics="temp.1")] == list(range(2, 401, 4))
    assert len(reads(spark, **given, topics="temp.*,temp.1")) == 400
    assert {r.topic for r in reads(spark, **given, pattern="p.[12]$")} == {"temp.1", "temp.2"}
    some = reads(
        spark, **given, startingOffsets=f'{{"{stream}": 11}}', endingOffsets=f'{{"{stream}": 21}}', minPartitions="3"
    )
    assert [r.sequence for r in some] == list(range(11, 21))
    assert "pattern needs a stream" in failure(spark, process.url, pattern="x")
    assert "topics and pattern exclude each other" in failure(spark, **given, pattern="x", topics="y")
    assert "option pattern is for Malamute" in failure(spark, "nats://127.0.0.1:1", stream="s", pattern="x")
    assert "not a pattern" in failure(spark, **given, pattern="(")
    assert "there is no such stream" in failure(spark, process.url, stream="typo")
