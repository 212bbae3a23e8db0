"""``mamasub`` from the durable streams of a Malamute broker: each message a row, once, whatever happens in between."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from tests.support.malamute.broker_process import BrokerProcess

_STREAMS = itertools.count(1)


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
