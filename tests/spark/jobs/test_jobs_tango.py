"""``jobs/tango_archive.py`` in the session of the tests, and the documented queries on the table it makes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import RecordLog
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.tango.bridge import RecordCodec
from mama_spark.tango.events.event_codec import CallInfo, Event, encode
from mama_spark.tango.log.records import GapCause, RecordKind, record_topic
from mama_spark.tango.topics import Topic, event_topic
from mama_spark.tango.types import AttributeConfig, DevError, EventType, Severity
from pyspark.sql import SparkSession

from tests.support.nats.nats_log import record_log
from tests.support.spark.spark_jobs import ROOT, conf_file, in_session
from tests.support.tango.records import encode_one

PAGE = (ROOT / "docs" / "how-to" / "query-the-tango-archive.md").read_text()
HDBPP = (ROOT / "docs" / "how-to" / "come-from-hdbpp.md").read_text()
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
TEMPERATURE = event_topic("lab", "lab/cell/1", "temperature", EventType.CHANGE, dbase=False)


@pytest.fixture
def log(nats_server: NatsServer) -> Iterator[RecordLog]:
    with record_log(nats_server.url, "TANGO") as log:
        yield log


def publish(log: RecordLog, device: str, attribute: str, value: pa.Array, **columns: Any) -> None:
    """As the sink does."""
    named = {"device": [device] * len(value), "attribute": [attribute] * len(value), "value": value, **columns}
    made = RecordCodec("lab", "tango").encode(pa.RecordBatch.from_pydict(named))
    assert not made.bad
    log.append(MessageBatch(made.topics, made.payloads))


def readings(log: RecordLog, first: int, n: int) -> None:
    """One a second."""
    micros = int(NOON.timestamp()) * 1_000_000
    seconds = range(first, first + n)
    times = pa.array([micros + second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC"))
    qualities = ["ALARM" if second == 7 else "VALID" for second in seconds]
    publish(log, "lab/cell/1", "temperature", pa.array(map(float, seconds)), quality=qualities, time=times)


def append(log: RecordLog, topic: Topic, payload: bytes) -> None:
    log.append(MessageBatch.of([record_topic(topic)], [payload]))


def trouble(log: RecordLog) -> None:
    """A gap and an error, as a recorder writes them."""
    at = int((NOON + timedelta(seconds=90)).timestamp()) * 10**9
    append(log, TEMPERATURE, encode_one(RecordKind.GAP, at, first=8, last=12, count=5, cause=GapCause.WAY))
    why = DevError("API_EventTimeout", Severity.ERR, "no heartbeat", "here")
    frames = encode(Event(TEMPERATURE, CallInfo(13, True), None, (why,)))
    append(log, TEMPERATURE, encode_one(RecordKind.EVENT, at, frames, ctr=13))


def configure(log: RecordLog, label: str, unit: str, seconds: int) -> None:
    """A configuration, as a recorder reads it."""
    topic = event_topic("lab", "lab/cell/1", "temperature", EventType.ATTR_CONF, dbase=False)
    frames = encode(Event(topic, CallInfo(0), AttributeConfig("temperature", label=label, unit=unit)))
    at = int((NOON + timedelta(seconds=seconds)).timestamp()) * 10**9
    append(log, topic, encode_one(RecordKind.INITIAL, at, frames))


def of_hdbpp(spark: SparkSession, table: str) -> None:
    """The queries of the page for users of HDB++."""
    att_conf = spark.read.format("delta").load(table)
    att_conf.createOrReplaceTempView("att_conf")
    rows = att_conf.orderBy("started").collect()
    changed = NOON + timedelta(seconds=320)
    assert [(r.label, r.unit, r.stopped is None) for r in rows] == [
        ("Temperature", "degC", False), ("Temperature", "K", True),
    ]  # fmt: skip
    assert [t.astimezone(UTC) for t in (rows[0].started, rows[0].stopped, rows[1].started)] == [NOON, changed, changed]
    assert (rows[0].att_name, rows[0].member) == ("tango://lab/lab/cell/1/temperature", "1")
    queries = re.findall(r"```sql\n(.*?)```", HDBPP, re.DOTALL)
    series, shares = (spark.sql(query).collect() for query in queries)
    assert [r.value for r in series] == [*map(float, range(120)), *map(float, range(300, 360))]
    assert Counter(r.unit for r in series) == {"degC": 140, "K": 40}
    (share,) = [r for r in shares if r.lost]
    assert (share.attribute, share.events, share.lost, share.percent) == ("temperature", 1, 5, 16.667)  # of today


@pytest.mark.thorough
def test_the_archive_has_every_record_once_and_answers_what_archivers_ask(
    spark: SparkSession, nats_server: NatsServer, log: RecordLog, tmp_path: Path
) -> None:
    tables: dict[str, dict[str, Any]] = {
        "mamasub": {"url": nats_server.url, "stream": "TANGO"},
        "archive": {"path": str(tmp_path / "archive"), "devices": ["LAB/cell_1/*", "lab/*"]},
        "stream": {"checkpointLocation": str(tmp_path / "checkpoint"), "trigger": "availableNow"},
        'strategies."lab/cell/3/*"': {"absChange": 0.5, "every": "1m"},
    }
    configure(log, "Temperature", "degC", 0)
    readings(log, 0, 120)
    publish(log, "lab/cell/3", "level", pa.array([1.0, 1.2]), time=[NOON, NOON + timedelta(seconds=1)])
    publish(log, "other/x/1", "a", pa.array([1]))
    conf = conf_file(tmp_path / "tango-archive.toml", **tables)
    in_session(spark, "tango_archive", conf)
    trouble(log)
    readings(log, 300, 60)
    publish(log, "lab/cell/2", "profile", pa.array([[1, 2, 3]]))
    configure(log, "Temperature", "degC", 60)  # as another recorder reads it
    configure(log, "Temperature", "K", 320)
    publish(
        log, "lab/cell/3", "level", pa.array([1.4, 1.6, 1.7]), time=[NOON + timedelta(seconds=s) for s in (2, 3, 80)]
    )
    in_session(spark, "tango_archive", conf)

    archive = spark.read.format("delta").load(str(tmp_path / "archive"))
    rows = archive.collect()
    left_out = (123, 124, 190)  # little changes of the level, and another device
    assert sorted(r.sequence for r in rows) == [s for s in range(1, log.bounds().last + 1) if s not in left_out]
    values = {r.data_time: r.value for r in rows if r.attribute == "temperature" and r.quality is not None}
    begin = int(NOON.timestamp()) * 10**9
    assert values == {begin + i * 10**9: float(i) for i in [*range(120), *range(300, 360)]}
    (profile,) = [r for r in rows if r.attribute == "profile"]
    assert (profile.value, profile.value_long, profile.dim_x, profile.format) == (None, [1, 2, 3], 3, "SPECTRUM")
    assert profile.data_time is not None  # the row had no time: when the log stored it
    assert Counter(r.kind for r in rows) == {"event": 188, "gap": 1}
    (failed,) = [r for r in rows if r.errors]
    assert failed.errors[0].reason == "API_EventTimeout"

    archive.createOrReplaceTempView("archive")
    of_hdbpp(spark, str(tmp_path / "archive_att_conf"))
    last, lost, silent = (spark.sql(query).collect() for query in QUERIES[-3:])
    assert [(r.device, r.attribute, r.value, r.quality) for r in last] == [("lab/cell/1", "temperature", 29.0, "VALID")]
    assert [(r.attribute, r.gap_count, r.cause) for r in lost] == [("temperature", 5, "way")]
    assert {(r.attribute, r.seconds) for r in silent} == {("temperature", 181.0), ("level", 77.0)}
