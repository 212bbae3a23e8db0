"""``mamasub`` with ``omnm``: the column ``mama``, columns of fields, and messages that are none."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mama_spark.contracts.errors import ConfigError, MamaError, OptionError
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import MamaMsg, MamaPrice, MamaTime
from mama_spark.mama.messages.omnm import encode
from mama_spark.memory.logs import MemoryLogs
from mama_spark.openmama.recorder.frame_recorder import RecordPacker
from mama_spark.openmama.wire.dictionary import DictionaryEntry, dictionary_message
from mama_spark.openmama.wire.frames import FRAMINGS, BridgeFrame, FrameType
from mama_spark.openmama.wire.naming import CONNECT, NamingFrame, PeerPresence, encode_naming
from mama_spark.openmama.wire.records import MamaRecord, MamaRecordKind, record_topic
from pyspark.sql import types as T

from tests.support.spark.memory_harness import FilledLog

AT = 1_700_000_000_000_000_000
ENTRIES = [DictionaryEntry(237, "wBidPrice", FieldType.PRICE), DictionaryEntry(238, "wBidSize", FieldType.U32)]


def tick(n: int, price: float = 100.0) -> MamaMsg:
    msg = MamaMsg()
    msg.add(FieldType.U8, "MdMsgType", 1, 0)
    msg.add(FieldType.U8, "MdMsgStatus", 2, 0)
    msg.add(FieldType.U32, "MdSeqNum", 10, n)
    msg.add(FieldType.U64, "MamaSenderId", 20, 2**63 + 1)
    msg.add(FieldType.STRING, "wIssueSymbol", 305, "IBM")
    msg.add(FieldType.PRICE, "wBidPrice", 237, MamaPrice(price + n))
    msg.add(FieldType.U32, "wBidSize", 238, 100 + n)
    return msg


def record(n: int, framing: str = "oz") -> bytes:
    frame = FRAMINGS[framing].encode(BridgeFrame(FrameType.PUBLISH, "OM.IBM", encode(tick(n))))
    at = len(frame) - len(encode(tick(n)))
    return MamaRecord(MamaRecordKind.MESSAGE, record_topic("OM.IBM"), AT + n, frame, framing, at).encode()


def put(log: FilledLog, payloads: list[bytes], topic: str = "mama.OM.IBM") -> None:
    log.append(payloads, topic)


def rows_of(log: FilledLog, schema: T.StructType | None = None, **options: str) -> list[dict[str, Any]]:
    source = log.source(**{"topics": ">", "omnm": "true", **options})
    reader = source.reader(source.schema() if schema is None else schema)
    there = pickle.loads(pickle.dumps(reader))
    return [row for task in reader.partitions() for batch in there.read(task) for row in batch.to_pylist()]


def test_records_of_both_framings_and_plain_messages_are_structs(log: FilledLog) -> None:
    put(log, [record(1), record(2, "zmq"), encode(tick(3))])
    rows = rows_of(log)
    assert [row["mama"]["framing"] for row in rows] == ["oz", "zmq", None]
    assert [row["mama"]["topic"] for row in rows] == ["OM.IBM", "OM.IBM", None]
    assert [row["mama"]["received"] for row in rows] == [AT + 1, AT + 2, None]
    for n, row in enumerate(rows, 1):
        mama = row["mama"]
        assert (mama["kind"], mama["msg_type"], mama["msg_status"]) == ("message", "UPDATE", "OK")
        assert (mama["seq_num"], mama["sender"]) == (n, str(2**63 + 1))
        fields = dict(mama["fields"])
        assert list(fields)[:3] == ["MdMsgType", "MdMsgStatus", "MdSeqNum"]
        assert fields["wBidPrice"] == {"fid": 237, "type": "PRICE", "value": repr(100.0 + n)}
        assert mama["reason"] is None


@pytest.mark.spec("OW29")
def test_packed_records_are_the_rows_that_single_ones_are(log: FilledLog) -> None:
    """Of one stream: a log that a recorder went on with packs; a corrupt pack is one row with the reason."""
    single = [record(n) for n in range(1, 8)]
    put(log, single)
    packer = RecordPacker(3, 65_536)
    stored = MemoryLogs(log.name).log(log.name)
    for batch in packer.messages(pa.array(["mama.OM.IBM"] * 7).dictionary_encode(), pa.array(single, pa.binary())):
        stored.append(batch)
        whole = batch.payloads[0].as_py()
        stored.append(replace(batch.slice(0, 1), payloads=pa.array([whole[:-40]], pa.binary())))
    rows = rows_of(log, fields="wBidSize int")
    alike = [{k: v for k, v in row.items() if k not in ("sequence", "pack_index", "timestamp")} for row in rows]
    assert alike[:7] == alike[7:14]
    assert [row["pack_index"] for row in rows] == [None] * 7 + [0, 1, 2, 0, 1, 2, None] + [None]
    assert [row["sequence"] for row in rows[7:]] == [8, 8, 8, 9, 9, 9, 10, 11]
    assert (rows[-1]["mama"]["kind"], rows[-1]["wBidSize"]) == ("corrupt", None)
    assert rows[-1]["mama"]["reason"]
    with pytest.raises(MamaError, match="message 11"):
        rows_of(log, failOnCorrupt="true")


def test_fields_are_columns_of_the_types_that_the_query_says(log: FilledLog) -> None:
    put(log, [record(n) for n in range(1, 101)])
    fields = "wBidPrice double, wBidSize int, wIssueSymbol string, MamaSenderId decimal(20,0), none int"
    rows = rows_of(log, fields=fields)
    assert [(row["wBidPrice"], row["wBidSize"], row["wIssueSymbol"], row["none"]) for row in rows] == [
        (100.0 + n, 100 + n, "IBM", None) for n in range(1, 101)
    ]
    assert rows[0]["MamaSenderId"] == 2**63 + 1
    assert rows[0]["mama"]["fields"] is None
    assert rows[0]["mama"]["seq_num"] == 1
    schema = T.StructType().add("wBidPrice", T.DoubleType()).add("topic", T.StringType())
    assert rows_of(log, schema)[0] == {"wBidPrice": 101.0, "topic": "mama.OM.IBM"}, "or his schema names them"


def test_the_map_and_typed_columns_have_the_same_value(log: FilledLog) -> None:
    """A price without the hint that it is valid has its number, and a time that was never set is null."""
    msg = tick(1)
    msg.add(FieldType.PRICE, "wAskPrice", 239, MamaPrice(7.5, hints=0))
    msg.add(FieldType.TIME, "wTime", 1, MamaTime(0, hints=0))
    put(log, [encode(msg)] * 20)
    for row, typed in zip(rows_of(log), rows_of(log, fields="wAskPrice string, wTime timestamp"), strict=True):
        fields = dict(row["mama"]["fields"])
        assert [fields[name]["value"] for name in ("wAskPrice", "wTime")] == ["7.5", None]
        assert [typed["wAskPrice"], typed["wTime"], typed["mama"]["reason"]] == ["7.5", None, None]


def test_a_value_that_does_not_fit_is_null_and_the_row_says_why(log: FilledLog) -> None:
    put(log, [encode(tick(1)), encode(tick(2, price=1.5))])
    rows = rows_of(log, fields="wBidPrice int")
    assert [row["wBidPrice"] for row in rows] == [101, None]
    assert "PRICE" in rows[1]["mama"]["reason"]
    assert rows[1]["mama"]["kind"] == "message"


def test_types_come_from_a_dictionary_file(log: FilledLog, tmp_path: Path) -> None:
    path = tmp_path / "data.dict"
    path.write_text("237|wBidPrice|27\n238|wBidSize|U32\n102|wActivityTime|26\n")
    put(log, [encode(tick(1))])
    fields = "wBidPrice,wActivityTime, wBidSize int"
    schema = log.source(topics=">", omnm="true", fields=fields, dictionary=str(path)).schema()
    types = {f.name: f.dataType for f in schema.fields}
    assert (types["wBidPrice"], types["wActivityTime"]) == (T.DoubleType(), T.TimestampType())
    assert types["wBidSize"] == T.IntegerType()
    (row,) = rows_of(log, fields="wBidPrice,wActivityTime", dictionary=str(path))
    assert (row["wBidPrice"], row["wActivityTime"]) == (101.0, None)


def test_types_and_numbers_come_from_the_feeds_own_dictionary(log: FilledLog) -> None:
    body = encode(dictionary_message(ENTRIES))
    put(log, [MamaRecord(MamaRecordKind.DICTIONARY, "", AT, b"head" + body, "oz", 4).encode()], "mama._dictionary.OM")
    unnamed = MamaMsg()
    unnamed.add(FieldType.PRICE, "", 237, MamaPrice(7.5))
    put(log, [encode(unnamed)])
    dictionary, row = rows_of(log, fields="wBidPrice", dictionary="feed")
    assert row["wBidPrice"] == 7.5
    assert dictionary["mama"]["kind"] == "dictionary"
    assert '"name":"wBidPrice","type":"PRICE"' in dictionary["mama"]["detail"]


def test_gaps_and_peers_are_rows_without_fields(log: FilledLog) -> None:
    frame = encode_naming(NamingFrame(CONNECT, "capturereplayc", "host", 17, "u" * 36, "tcp://127.0.0.1:1"))
    lost = MamaRecord(MamaRecordKind.GAP, "", AT, cause=1, sender=12, first=5, last=7)
    put(log, [lost.encode(), MamaRecord(MamaRecordKind.PEER, "", AT, frame, "oz", cause=PeerPresence.SUSPECT).encode()])
    gap, peer = (row["mama"] for row in rows_of(log))
    assert (gap["kind"], gap["gap_from"], gap["gap_to"], gap["cause"]) == ("gap", 5, 7, "way")
    assert (gap["sender"], gap["topic"], gap["reason"]) == ("12", "OM.IBM", None)
    assert (peer["kind"], peer["cause"], peer["gap_from"]) == ("peer", "suspect", None)
    assert '"program":"capturereplayc"' in peer["detail"]


@pytest.mark.spec("OW7")
def test_what_is_no_message_is_a_row_with_its_bytes_and_the_reason(log: FilledLog) -> None:
    qpid = FRAMINGS["oz"].encode(BridgeFrame(FrameType.PUBLISH, "OM.IBM", b"Qpid"))
    other = MamaRecord(MamaRecordKind.MESSAGE, "", AT, qpid, "oz", 9)
    put(log, [b"no message", encode(tick(1))[:-3], other.encode(), b""])
    rows = rows_of(log)
    assert [row["mama"]["kind"] for row in rows] == ["corrupt"] * 4
    assert rows[0]["value"] == b"no message"
    assert all(row["mama"]["reason"] and row["mama"]["fields"] is None for row in rows)
    assert "mama.payload.default=omnmmsg" in rows[2]["mama"]["reason"]
    with pytest.raises(MamaError, match="message 1: the payload has the id b'n'"):
        rows_of(log, failOnCorrupt="true")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"fields": "a"}, OptionError, "a has no type"),
        ({"fields": "a struct<b:int>"}, OptionError, "no such type"),
        ({"fields": "topic string"}, OptionError, "topic is a column of mamasub itself"),
        ({"fields": "a int, A long"}, OptionError, "names a twice"),
        ({"fields": "a", "dictionary": "/nowhere"}, ConfigError, "/nowhere"),
        ({"fields": "a", "dictionary": "feed"}, ConfigError, "no recorder wrote a dictionary"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(
    log: FilledLog, options: dict[str, str], error: type[MamaError], text: str
) -> None:
    put(log, [encode(tick(1))])
    with pytest.raises(error, match=text):
        rows_of(log, None, **options)
