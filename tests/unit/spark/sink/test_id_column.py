"""What columns are for, which one holds message ids, and what becomes of rows that share an id."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mama_spark.contracts.errors import ConfigError, OptionError, RowsFailed, SchemaError
from mama_spark.flightlog.reading import shared_ids
from mama_spark.memory import MemoryBroker
from mama_spark.options import SinkOptions
from mama_spark.spark.sink import packs
from mama_spark.spark.sink.data_source import MamaPubWriter
from mama_spark.spark.sink.encoding.columns import plan_columns
from mama_spark.spark.sink.job import ColumnPlan, PartitionReport, SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from pyspark.sql import types as T
from pyspark.sql.datasource import WriterCommitMessage

from tests.support.spark import memory_harness
from tests.support.spark.memory_harness import flights
from tests.support.tables import each

PLAN = replace(memory_harness.PLAN, id="id")
TANGO = {"url": "tango://lab", "log": "nats://h/TANGO"}
KINDS = {
    "long": T.LongType(), "double": T.DoubleType(), "binary": T.BinaryType(), "at": T.TimestampType(),
    "int": T.IntegerType(), "map": T.MapType(T.IntegerType(), T.ArrayType(T.DateType())), "null": T.NullType(),
    "headers": T.MapType(T.StringType(), T.StringType()),
    "multimap": T.MapType(T.StringType(), T.ArrayType(T.StringType())),
    "kafka": T.ArrayType(T.StructType().add("key", T.StringType()).add("value", T.BinaryType())),
    "struct": T.StructType().add("a", T.IntegerType()), "numbered": T.MapType(T.IntegerType(), T.IntegerType()),
    "days": T.StructType().add("b", T.ArrayType(T.DayTimeIntervalType(0, 0))),
    "decimals": T.StructType().add("c", T.ArrayType(T.DecimalType(9, 2))),
}  # fmt: skip


def schema(columns: str) -> T.StructType:
    """``name`` or ``name:kind``; strings where no kind is given."""
    fields = [(name, KINDS.get(kind, T.StringType())) for name, _, kind in (c.partition(":") for c in columns.split())]
    return T.StructType([T.StructField(name, kind) for name, kind in fields])


def planned(columns: str, **options: str) -> ColumnPlan:
    return plan_columns(schema(columns), SinkOptions.parse({"url": "memory://x", **options}))


@each(
    ("columns", "options", "found", "json"),
    [
        ("topic a ID", {}, None, ("a", "ID")),
        ("topic value id", {"idColumn": "ID"}, "id", ()),
        ("topic a id", {"idColumn": "id"}, "id", ("a",)),
        ("topic a id", {"idColumn": ""}, None, ("a", "id")),
        ("topic a id:long", {}, None, ("a", "id")),
        ("topic value k:long", {"idColumn": "k"}, "k", ()),
        ("topic a k", {"idColumn": "k"}, "k", ("a", "k")),
        ("topic a id k", {"idColumn": "k"}, "k", ("a", "id", "k")),
        ("topic value id", {"ignoreUnknownColumns": "true"}, None, ()),
    ],
)
def test_the_column_is_the_one_that_is_named(
    columns: str, options: dict[str, str], found: str | None, json: tuple[str, ...]
) -> None:
    plan = planned(columns, **options)
    assert (plan.id, plan.json) == (found, json)


def test_each_column_has_a_purpose() -> None:
    plan = planned("topic value:binary")
    assert (plan.topic, plan.value, plan.json, plan.headers, plan.id) == ("topic", "value", (), None, None)
    assert planned("Topic a:int b:decimals id").json == ("a", "b", "id")
    assert planned("symbol value source root").parts == (("root", "root"), ("source", "source"), ("symbol", "symbol"))
    assert planned("topic source:int").json == ("source",), "an ordinary column where a topic is given"
    assert planned("topic value x:int", ignoreUnknownColumns="true").value == "value"
    forms = [planned(f"topic value headers:{kind}").headers_form for kind in ("headers", "multimap", "kafka")]
    assert forms == ["map", "multimap", "kafka"]
    assert planned("topic value x:int", flightLog="l", flightLogColumns="X").log == ("x",)


def test_a_row_says_its_stream_where_the_bridge_lets_it() -> None:
    plan = planned("topic a:int Stream", url="mlp://h")
    assert (plan.stream, plan.json) == ("Stream", ("a",))
    assert planned("topic value", url="mlp://h/prices").stream is None
    with pytest.raises(SchemaError, match="column 'stream' must be string, it is int; cast it"):
        planned("topic value stream:int", url="mlp://h")


@each(
    ("columns", "options", "why"),
    [
        ("", {}, "no columns"),
        ("value", {}, "no column 'topic'"),
        ("topics value", {}, r"is it 'topics'\?"),
        ("topic:int value", {}, "column 'topic' must be string, it is int; cast it"),
        ("topic value:int", {}, "column 'value' must be binary or string, it is int"),
        ("topic value:struct", {}, r'make it JSON: to_json\("value"\)'),
        ("topic value headers", {}, "column 'headers' must be map"),
        ("topic value valu", {}, "did you mean 'value'"),
        ("topic value x:int y:int", {}, "also: 'y'"),
        ("topic", {}, "nothing to publish"),
        ("topic Topic value", {}, "two columns"),
        ("topic value", {"topic": "a"}, "both option topic and a column"),
        ("topic a:numbered", {}, "string keys"),
        ("topic a:days", {}, r"a\.b\[\].* has no JSON form"),
        ("topic value stream", {}, "option stream"),
        ("topic value", {"flightLog": "x", "flightLogColumns": "valu"}, "did you mean 'value'"),
        ("topic value id", {}, "is used by no rule; is it the message id. Set option idColumn='id'"),
        ("topic value key", {}, r"column 'key' is used by no rule; messages have no key .*concat."),
        ("topic value id", {"idColumn": ""}, "column 'id' is used by no rule; drop it"),
        ("topic value ids", {"idColumn": "idss"}, "idColumn names 'idss', which is no column; did you mean 'ids'"),
        ("topic value k:at", {"idColumn": "k"}, "must be string or an integer, it is timestamp; cast it"),
        ("topic value k", {"idColumn": "k", "pack": "lines"}, "column 'k': pack=lines carries values only"),
        ("topic n k", {"idColumn": "k", "pack": "arrow"}, "option idColumn: without a column 'value'"),
        ("topic value headers:headers", {"pack": "lines"}, "column 'headers': pack=lines"),
        ("topic value n:int", {"pack": "arrow"}, "used by no rule"),
        ("topic n:int headers:headers", {"pack": "arrow"}, "typed rows have no headers"),
        ("topic id", {"pack": "arrow"}, "nothing to publish"),
        ("topic n:int void:null", {"pack": "arrow"}, "cannot be in an arrow pack"),
        ("device attribut value:double", TANGO, r"no column 'attribute' \(string\); is it 'attribut'\?"),
        ("device attribute value:double qualty", TANGO, r"'qualty' is used by no rule; did you mean 'quality'\?"),
        ("device attribute value:double time", TANGO, "column 'time' must be"),
    ],
)
def test_misfits_are_named(columns: str, options: dict[str, str], why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        planned(columns, **options)


def test_columns_without_a_value_travel_typed_or_as_json() -> None:
    plan = planned("topic n:int m:map id", pack="arrow")
    assert (plan.typed, plan.json, plan.id) == (("n", "m", "id"), (), None)
    plan = planned("topic n:int at:at", pack="lines")
    assert (plan.typed, plan.json) == ((), ("n", "at"))


@pytest.mark.parametrize("given", [{}, {"idColumn": ""}], ids=str)
def test_what_to_do_with_doubled_ids_needs_a_column(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="onDuplicateId needs a column of ids: name it with option idColumn"):
        SinkOptions.parse({**given, "onDuplicateId": "fail"})


# --- rows ------------------------------------------------------------------------------------------------------


def rows(ids: list[Any], topics: list[str] | None = None) -> pa.RecordBatch:
    return pa.record_batch(
        {"topic": topics or ["t"] * len(ids), "value": [b"%d" % i for i in range(len(ids))], "id": pa.array(ids)}
    )


def job(broker: MemoryBroker, log: Path, plan: ColumnPlan = PLAN, /, *, run: str = "run", **options: str) -> SinkJob:
    return memory_harness.job(broker, log, plan, run=run, **{"idColumn": plan.id or "", **options})


def publish(one: SinkJob, *batches: pa.RecordBatch, attempt: int = 0) -> PartitionReport:
    return memory_harness.publish(one, batches, TaskInfo(0, attempt, None, None, None, False))


def values(broker: MemoryBroker) -> list[bytes]:
    return [message.payload for message in broker.messages()]


FOUR = ("a", "b", "a", "a")


def test_a_doubled_row_fails_alone_where_the_column_was_named(broker: MemoryBroker, tmp_path: Path) -> None:
    before = publish(job(broker, tmp_path / "before"), rows(["a", "b"])).counts
    assert (before.acked, before.duplicates, before.doubled_ids) == (2, 0, 0)
    report = publish(job(broker, tmp_path / "log"), rows(list(FOUR)), attempt=1)
    counts = report.counts
    assert counts.duplicates == 2, "a repetition is no doubled id"
    assert (counts.rows, counts.acked, counts.failed, counts.row_errors, counts.doubled_ids) == (4, 2, 2, 2, 2)
    assert counts.first_doubled_id == ("a", "t")
    assert values(broker) == [b"0", b"1"]
    told = Counter((f["event"], f["status"], (f["info"] or "")[:28]) for f in flights(tmp_path / "log"))
    doubled = ("completed_exceptionally", "INVALID_ARG", "doubled id in the same write")
    assert told == {("acked", None, ""): 2, doubled: 2}
    with pytest.raises(RowsFailed, match=r"2 with a doubled id in the same write .the first: id 'a', topic 't'"):
        MamaPubWriter(job(broker, tmp_path / "log")).commit([report])


@pytest.mark.parametrize("level", ["outcomes", "errors"])
def test_a_doubled_row_is_sent_and_told_where_a_warning_is_enough(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    one = job(broker, tmp_path, flightLogLevel=level, onDuplicateId="warn")
    report = publish(one, rows(list(FOUR[:2])), rows(list(FOUR[2:])))
    assert (report.counts.acked, report.counts.duplicates, report.counts.doubled_ids) == (4, 2, 2)
    assert values(broker) == [b"0", b"1"]
    told = [f for f in flights(tmp_path) if f["info"] is not None]
    assert {(f["event"], f["flight_id"], f["status"], f["info"]) for f in told} == {
        ("acked", "a", None, "doubled id in the same write")
    }
    assert len(told) == 2
    assert len(flights(tmp_path)) == (4 if level == "outcomes" else 2)
    MamaPubWriter(one).commit([report])
    assert "of 4 rows, 2 with a doubled id in the same write (the first: id 'a', topic 't')" in caplog.text


@pytest.mark.parametrize("options", [{"dedup": "false"}, {"ackMode": "none"}, {"pack": "arrow"}], ids=str)
def test_a_doubled_id_is_counted_whatever_the_broker_does_with_it(
    broker: MemoryBroker, tmp_path: Path, options: dict[str, str]
) -> None:
    for what in ("warn", "fail"):
        report = publish(job(broker, tmp_path / what, onDuplicateId=what, **options), rows(list(FOUR)))
        assert (report.counts.doubled_ids, report.counts.failed) == (2, 2 if what == "fail" else 0)


def test_a_pack_with_a_doubled_id_is_told_in_the_flight_log(broker: MemoryBroker, tmp_path: Path) -> None:
    one = job(broker, tmp_path, onDuplicateId="warn", pack="arrow", packMaxRows="2")
    report = publish(one, rows(["a", "b"]), rows(["c", "a", "d", "e"]))
    assert (report.counts.acked, report.counts.doubled_ids) == (6, 1)
    assert Counter(f["info"] for f in flights(tmp_path)) == {None: 2, "doubled id in the same write": 1}


def test_halves_of_a_pack_that_is_too_large_are_told_by_their_own_rows(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "HEADER_BYTES", -(1 << 20))  # packs may be larger than the broker takes
    large = pa.record_batch(
        {"topic": ["t"] * 4, "value": [bytes([i]) * 300_000 for i in range(4)], "id": ["a", "b", "c", "a"]}
    )
    one = job(broker, tmp_path, onDuplicateId="warn", pack="arrow", packMaxRows="4", packMaxBytes=str(2 << 20))
    assert publish(one, large).counts.acked == 4
    infos = [f["info"] for f in sorted(flights(tmp_path), key=lambda f: f["sequence"])]
    assert infos == [None, "doubled id in the same write"]


def test_two_tasks_of_a_write_that_share_an_id_are_told_as_what_they_are(
    broker: MemoryBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = job(broker, tmp_path)
    made: list[WriterCommitMessage | None] = [
        publish_partition(one, TaskInfo(task, 0, None, None, None, False), iter([rows(["shared", f"own {task}"])]))
        for task in (0, 1)
    ]
    MamaPubWriter(one).commit([*made])
    told = "4 rows, all acknowledged (1 with an id stored before, by another task or an earlier attempt or write)"
    assert told in capsys.readouterr().err
    assert len(values(broker)) == 3
    (found,) = shared_ids(str(tmp_path), {})
    assert (found["flight_id"], found["rows"], found["duplicates"], found["tasks"]) == ("shared", 2, 1, 2)


def test_integers_are_ids_in_decimal(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(job(broker, tmp_path), rows([2**63 - 1, -7]))
    assert [message.id for message in broker.messages()] == ["9223372036854775807", "-7"]


def test_each_row_that_fails_is_a_dead_letter_of_its_own_also_where_ids_are_null_or_doubled(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """Their flights share ids, and a broker keeps one message of an id."""
    one = job(broker, tmp_path, onError="deadletter", deadLetterTopic="dead")
    for attempt in (0, 1):
        report = publish(one, rows(["a", None, "a", None, "b"]), attempt=attempt)
        assert (report.counts.failed, report.counts.dead_lettered) == (3, 3)
    letters = [message for message in broker.messages() if message.topic == "dead"]
    assert [letter.payload for letter in letters] == [b"1", b"2", b"3"], "the repetition stores none again"
    assert {letter.id.split("-dlq-")[0] for letter in letters if letter.id} == {"", "a"}


# --- after a write that failed ---------------------------------------------------------------------------------


PLAIN = replace(PLAN, id=None)


def failure(
    broker: MemoryBroker, log: Path, plan: ColumnPlan, ids: list[Any], topics: list[str], *, run: str = "run",
    reported: dict[str, Any] | None = None, **options: str,
) -> str:  # fmt: skip
    """The error of a write whose rows on the topic ``bad`` are refused; ``reported``: what its task says besides."""
    broker.denied.add("bad")
    one = job(broker, log, plan, run=run, **options)
    report = replace(publish(one, rows(ids, topics)), **(reported or {}))
    with pytest.raises((RowsFailed, ConfigError)) as e:
        MamaPubWriter(one).commit([report])
    return str(e.value)


def test_the_error_names_the_id_prefix_with_which_a_repetition_stores_nothing_twice(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    said = failure(broker, tmp_path / "1", PLAIN, list(range(10)), ["t"] * 9 + ["bad"], run="first")
    assert "; 9 rows are stored already, and a repetition of the write stores them again" in said
    assert "idPrefix='first'" in said
    assert "txnAppId and txnVersion" in said
    assert "onError=deadletter with deadLetterTable, or onError=log, let a write succeed" in said
    again = job(broker, tmp_path / "2", PLAIN, run="second", idPrefix="first")
    publish(again, rows(list(range(10)), ["t"] * 10))
    assert len(values(broker)) == 10


TXN = {"txnAppId": "a", "txnVersion": "1"}
WINDOW = {"duplicate_window": 60.0}


@pytest.mark.parametrize(
    ("plan", "options", "reported", "said", "unsaid"),
    [
        (PLAN, {}, {}, "a repetition with the same ids, within", "idPrefix"),
        (PLAIN, {"idPrefix": "p"}, {}, "partitions, within the stream's duplicate window, does not store", "idPrefix="),
        (PLAIN, TXN, {}, "does not store them again", "idPrefix"),
        (PLAIN, {"dedup": "false"}, {}, "dedup=true with idPrefix, or with txnAppId and txnVersion,", "idPrefix='run'"),
        (PLAIN, {"pack": "arrow"}, {}, "same partitions and order", "onUncertain"),
        (PLAIN, {}, WINDOW, "run; a later repetition needs exactlyOnce, txnAppId and txnVersion, from", "onUncertain"),
        (PLAIN, TXN, WINDOW, "again; a later repetition needs exactlyOnce, from the first run on", "idPrefix"),
    ],
)
def test_only_cures_that_fit_the_options_are_named(
    broker: MemoryBroker,
    tmp_path: Path,
    plan: ColumnPlan,
    options: dict[str, str],
    reported: dict[str, Any],
    said: str,
    unsaid: str,
) -> None:
    text = failure(broker, tmp_path, plan, ["a", "b"], ["t", "bad"], reported=reported, **options)
    assert "; 1 row is stored already" in text
    assert said in text
    assert unsaid not in text
    assert ("within the stream's duplicate window of 60 s" in text) == (reported == WINDOW)


def test_nothing_is_advised_that_does_not_help(broker: MemoryBroker, tmp_path: Path) -> None:
    """Where nothing was stored, by a broker that knows no ids, and for an error that rows are not to blame for."""
    assert "already" not in failure(broker, tmp_path / "0", PLAN, ["a"], ["bad"])
    ids, topics = ["a", "b"], ["t", "bad"]
    text = failure(broker, tmp_path / "1", PLAN, ids, topics, reported={"knows_ids": False, "stores": False})
    assert "1 row is published already, and a repetition of the write publishes them again: this broker" in text
    assert "idPrefix" not in text
    assert "onError=deadletter" in text
    text = failure(broker, tmp_path / "2", PLAIN, ids, ["t", "t"], reported={"fatal": "no such stream"})
    assert text.startswith("no such stream; 2 rows are stored already")
    assert "onError" not in text
