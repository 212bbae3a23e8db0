"""Writes what a state of the package leaves behind besides ``record.py``, for ``tests/live/test_older_formats.py``:
markers of ``exactlyOnce``, packs, records of Tango and of OpenMAMA, dead letters. Run it with the code of that state:

``PYTHONPATH=CONNECTOR:. python tests/data/record_formats.py FOLDER``
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
from mama_spark.contracts.message import MessageBatch
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.schema import DEAD_LETTER_TABLE
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import MamaMsg
from mama_spark.mama.messages.omnm import encode
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.openmama.wire.frames import OZ, BridgeFrame, FrameType
from mama_spark.openmama.wire.records import MamaRecord, MamaRecordKind, messages, record_topic
from mama_spark.options import SubscribeOptions
from mama_spark.registry import log_bridge
from mama_spark.tango.bridge import RecordCodec

from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import Query, rows

#: 2026-01-31T12:00:00Z, in nanoseconds.
NOON = 1_769_860_800 * 10**9
ROWS, STORED = 500, 300
PACKS = {
    "LINES": {"pack": "lines", "packMaxRows": "7"},
    "ARROW": {"pack": "arrow", "packMaxRows": "7", "packCompression": "zstd"},
}


def interrupted(admin: Admin, url: str) -> None:
    """A batch of which the first rows are stored."""
    admin.create_stream("ONCE", ["once.>"])
    Query(url).attempt(rows(0, STORED))
    admin.update_stream("MAMA_BATCHES", max_age=0)  # markers end with their months, and these are to stay


def packs(admin: Admin, url: str) -> None:
    for stream, options in PACKS.items():
        admin.create_stream(stream, [f"{stream.lower()}.>"])
        Query(url, {**options, "topicPrefix": stream.lower(), "exactlyOnce": "false"}).attempt(rows(0, ROWS))


def append(url: str, stream: str, batch: MessageBatch) -> None:
    bridge = log_bridge(SubscribeOptions.parse({"url": url, "stream": stream}), 60.0)
    bridge.open()
    bridge.log(stream).append(batch)
    bridge.close()


def tango(admin: Admin, url: str) -> None:
    admin.create_stream("TANGO", ["tango.>"])
    times = pa.array([NOON // 1_000 + n * 1_000_000 for n in range(3)], pa.timestamp("us", "UTC"))
    columns = {"device": ["lab/cell/1"] * 3, "attribute": ["temperature"] * 3, "value": [0.0, 1.5, 3.0], "time": times}
    made = RecordCodec("lab", "tango").encode(pa.RecordBatch.from_pydict(columns))
    append(url, "TANGO", MessageBatch(made.topics, made.payloads))


def openmama(admin: Admin, url: str) -> None:
    admin.create_stream("MAMA", ["mama.>"])
    records = []
    for number in range(3):
        msg = MamaMsg()
        msg.add(FieldType.U32, "MdSeqNum", 10, number)
        msg.add(FieldType.STRING, "wIssueSymbol", 305, "IBM")
        payload = encode(msg)
        frame = OZ.encode(BridgeFrame(FrameType.PUBLISH, "OM.IBM", payload))
        size = len(frame) - len(payload)
        records.append(MamaRecord(MamaRecordKind.MESSAGE, record_topic("OM.IBM"), NOON + number, frame, "oz", size))
    append(url, "MAMA", messages(records))


def dead_letters(admin: Admin, url: str, folder: Path) -> None:
    """Rows that the stream does not take any more."""
    admin.create_stream("FULL", ["full.>"], max_msgs=10, discard="new")
    table = str(folder / "dead_letters")
    query = Query(
        url, {"onError": "deadletter", "deadLetterTable": table, "exactlyOnce": "false", "topicPrefix": "full"}
    )
    report = query.attempt(rows(0, 15))
    commit(table, {}, report.write_id, report.dead_letter_parts, kind=DEAD_LETTER_TABLE)


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    with NatsServer(folder / "nats") as server, Admin(server.url) as admin:
        dead_letters(admin, server.url, folder)
        admin.api("STREAM.DELETE.FULL")
        interrupted(admin, server.url)
        for part in (packs, tango, openmama):
            part(admin, server.url)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
