"""``jobs/openmama_archive.py`` in the session of the tests, and the documented queries."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from mama_spark.contracts.record_log import RecordLog
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import MamaMsg, MamaPrice, MamaTime
from mama_spark.mama.messages.omnm import encode
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.openmama.wire.frames import OZ, BridgeFrame, FrameType
from mama_spark.openmama.wire.records import MamaGapCause, MamaRecord, MamaRecordKind, messages, record_topic
from pyspark.sql import SparkSession

from tests.support.nats.nats_log import record_log
from tests.support.spark.spark_jobs import ROOT, conf_file, in_session

PAGE = (ROOT / "docs" / "how-to" / "archive-openmama.md").read_text()
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
NOON = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp())
FIELDS = "wIssueSymbol string, wBidPrice double, wBidSize int, wActivityTime timestamp, tiny decimal(6,2)"


@pytest.fixture
def log(nats_server: NatsServer) -> Iterator[RecordLog]:
    with record_log(nats_server.url, "MAMA") as log:
        yield log


def tick(symbol: str, n: int) -> MamaRecord:
    msg = MamaMsg()
    msg.add(FieldType.U8, "MdMsgType", 1, 0)
    msg.add(FieldType.U32, "MdSeqNum", 10, n)
    msg.add(FieldType.STRING, "wIssueSymbol", 305, symbol)
    msg.add(FieldType.PRICE, "wBidPrice", 237, MamaPrice(100.0 + n))
    msg.add(FieldType.U32, "wBidSize", 238, n)
    msg.add(FieldType.TIME, "wActivityTime", 102, MamaTime(NOON + n))
    payload = encode(msg)
    frame = OZ.encode(BridgeFrame(FrameType.PUBLISH, f"OM.{symbol}", payload))
    at = (NOON + n) * 10**9
    return MamaRecord(MamaRecordKind.MESSAGE, record_topic(f"OM.{symbol}"), at, frame, "oz", len(frame) - len(payload))


def append(log: RecordLog, *records: MamaRecord) -> None:
    log.append(messages(records))


@pytest.mark.thorough
def test_the_archive_has_every_tick_once_and_what_is_missing(
    spark: SparkSession, nats_server: NatsServer, log: RecordLog, tmp_path: Path
) -> None:
    conf = conf_file(
        tmp_path / "openmama-archive.toml",
        mamasub={"url": nats_server.url, "stream": "MAMA", "fields": FIELDS},
        archive={"path": str(tmp_path / "archive")},
        stream={"checkpointLocation": str(tmp_path / "checkpoint"), "trigger": "availableNow"},
    )
    own = MamaRecord(MamaRecordKind.STARTED, "mama._recorder.r", NOON * 10**9)
    append(log, own, *(tick(symbol, n) for n in range(1, 21) for symbol in ("IBM", "BRK.B")))
    in_session(spark, "openmama_archive", conf)
    gap = MamaRecord(
        MamaRecordKind.GAP, "mama.OM.IBM", (NOON + 50) * 10**9, cause=MamaGapCause.WAY, sender=7, first=21, last=49
    )
    append(log, gap, *(tick("IBM", n) for n in range(50, 61)))
    in_session(spark, "openmama_archive", conf)

    archive = spark.read.format("delta").load(str(tmp_path / "archive"))
    rows = archive.collect()
    assert sorted(r.sequence for r in rows) == list(range(2, log.bounds().last + 1))
    assert Counter(r.kind for r in rows) == {"message": 51, "gap": 1}
    assert {(r.topic, r.seq_num, r.wBidPrice, r.wBidSize, r.wIssueSymbol) for r in rows if r.kind == "message"} == {
        (f"OM.{symbol}", n, 100.0 + n, n, symbol)
        for symbol, numbers in (("IBM", [*range(1, 21), *range(50, 61)]), ("BRK.B", range(1, 21)))
        for n in numbers
    }
    assert all(r.wActivityTime == r.time and r.tiny is None for r in rows if r.kind == "message")

    archive.createOrReplaceTempView("archive")
    last, missing = (spark.sql(query).collect() for query in QUERIES)
    assert {(r.topic, r.wBidPrice) for r in last} == {("OM.IBM", 120.0), ("OM.BRK.B", 120.0)}
    assert [tuple(r) for r in missing] == [("OM.IBM", "7", 1, 29, "way")]
