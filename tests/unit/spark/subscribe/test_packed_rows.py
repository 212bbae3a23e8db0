"""What a task of ``mamasub`` makes of packed messages: rows, columns, and what is wrong with them."""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import CorruptPack, OptionError
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.contracts.record_log import Records
from mama_spark.options import SubscribeOptions
from mama_spark.spark.subscribe.packed_rows import SAMPLE_SEQUENCES, RowUnpacker, rows_per_sequence
from mama_spark.spark.subscribe.schema import PLAIN_SCHEMA, SCHEMA, message_columns_of, schema_of
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tests.support.spark.memory_harness import FilledLog

Headers = dict[str, str]
Message = tuple[str, bytes, Headers | None]
Row = dict[str, Any]

TYPED = pa.record_batch({"n": pa.array([7, None], pa.int32()), "id": ["i7", "i8"], "note": ["a", "b"]})
MESSAGES = pa.record_batch(
    {
        "value": pa.array([b"v0", b"v1"]),
        "headers": pa.array([[("own", ["x"])], None], HEADERS_TYPE),
        "id": pa.array(["id-0", None]),
    }
)


def arrow(batch: pa.RecordBatch, **headers: str) -> Message:
    payload = batch.schema.serialize().to_pybytes() + batch.serialize().to_pybytes() + b"\xff\xff\xff\xff\0\0\0\0"
    own = {"Mama-Pack": "arrow;v=1", "Mama-Pack-Rows": str(batch.num_rows), "Nats-Msg-Id": "pack-1"}
    return "t.arrow", payload, own | headers


def lines(*values: bytes, **headers: str) -> Message:
    own = {"Mama-Pack": "lines;v=1", "Mama-Pack-Rows": str(len(values)), "Nats-Msg-Id": "pack-2"}
    return "t.lines", b"\n".join(values), own | headers


def options(**given: str) -> SubscribeOptions:
    return SubscribeOptions.parse({"url": "memory://x", "topics": ">", **given})


def records(*messages: Message) -> Records:
    n = np.arange(len(messages))
    headers = [None if h is None else [(k, [v]) for k, v in h.items()] for _, _, h in messages]
    payloads = pa.array([p for _, p, _ in messages], pa.binary())
    topics = pa.array([t for t, _, _ in messages]).dictionary_encode()
    return Records(n + 5, n, topics, payloads, pa.array(headers, HEADERS_TYPE))


def rows(*messages: Message, schema: StructType | None = None, **given: str) -> list[Row]:
    return rows_of(records(*messages), schema, **given)


def rows_of(stored: Records, schema: StructType | None = None, **given: str) -> list[Row]:
    o = options(**given)
    shape = message_columns_of(schema_of(o) if schema is None else schema, o)
    found = []
    unpacking = RowUnpacker(o, shape, "S")
    for batch in unpacking.batches(stored):
        batch.validate(full=True)
        assert batch.schema.equals(to_arrow_schema(schema_of(o) if schema is None else schema, timezone="UTC"))
        found += batch.to_pylist()
    unpacking.finish()
    return found


def typed(*names: str, **more: Any) -> StructType:
    known = {f.name: f for f in SCHEMA.fields}
    fields = [known[name] for name in names]
    return StructType([*fields, *(StructField(name, kind) for name, kind in more.items())])


def test_packed_and_plain_messages_mix_and_every_row_knows_its_place() -> None:
    found = rows(("t.p", b"plain", {"k": "v", "Nats-Msg-Id": "m"}), lines(b"a", b"", b"c", k="w"), arrow(MESSAGES))
    assert [(r["topic"], r["sequence"], r["pack_index"]) for r in found] == [
        ("t.p", 5, None),
        *(("t.lines", 6, i) for i in range(3)),
        *(("t.arrow", 7, i) for i in range(2)),
    ]
    assert [r["value"] for r in found] == [b"plain", b"a", b"", b"c", b"v0", b"v1"]
    assert [r["headers"] for r in found] == [[("k", ["v"])], *[[("k", ["w"])]] * 3, [("own", ["x"])], None]
    assert [r["id"] for r in found] == ["m", None, None, None, "id-0", None]
    assert all(r["pack_error"] is None and r["stream"] == "S" for r in found)


VALUES = MESSAGES.select(["value"])
WIDE = VALUES.cast(pa.schema([("value", pa.large_binary())]))
ANY = [
    ("t.p", b"plain", {"k": "v", "Nats-Msg-Id": "m"}),
    ("ü", b"", None),
    lines(b"a", b"", b"c", k="w"),
    lines(b"one"),
    lines(b"a", b"b", **{"Mama-Pack-Rows": "3"}),
    *map(arrow, (MESSAGES, MESSAGES.select(["id", "value"]), MESSAGES.slice(1), VALUES, WIDE, TYPED)),
    ("t.cut", arrow(VALUES)[1][:-9], arrow(VALUES)[2]),
    ("t.empty", b"", arrow(VALUES)[2]),
]


@given(st.lists(st.sampled_from(ANY), min_size=1, max_size=12))
def test_a_message_becomes_the_same_rows_whatever_is_read_with_it(messages: list[Message]) -> None:
    together = records(*messages)
    alone = [rows_of(together.slice(i, i + 1), failOnCorrupt="false") for i in range(len(messages))]
    assert rows_of(together, failOnCorrupt="false") == [row for found in alone for row in found]


def test_without_unpacking_a_pack_is_one_row_as_it_is_stored() -> None:
    message = lines(b"a", b"b")
    (found,) = rows(message, unpack="false")
    assert (found["value"], found["id"]) == (b"a\nb", "pack-2")
    assert dict(found["headers"]) == {"Mama-Pack": ["lines;v=1"], "Mama-Pack-Rows": ["2"]}


def test_headers_are_left_out_of_packed_rows_when_they_are_not_wanted() -> None:
    found = rows(lines(b"a", k="w"), arrow(MESSAGES), includeHeaders="false")
    assert [r["headers"] for r in found] == [None] * 3
    assert [r["id"] for r in found] == [None, "id-0", None]


def test_columns_of_the_schema_come_from_typed_packs_and_are_null_elsewhere() -> None:
    schema = typed("sequence", "value", "id", note=StringType(), n=LongType(), none=DoubleType())
    few = pa.record_batch({"none": [0.5]})
    found = rows(("t", b"plain", None), arrow(TYPED), lines(b"a"), arrow(TYPED), schema=schema)
    assert [(r["n"], r["note"], r["id"], r["value"]) for r in found] == [
        (None, None, None, b"plain"),
        (7, "a", "i7", None),
        (None, "b", "i8", None),
        (None, None, None, b"a"),
        (7, "a", "i7", None),
        (None, "b", "i8", None),
    ]
    assert [r["none"] for r in found] == [None] * 6
    found = rows(arrow(TYPED), arrow(few), lines(b"a"), arrow(few), schema=schema)
    assert [(r["n"], r["none"]) for r in found] == [(7, None), (None, None), (None, 0.5), (None, None), (None, 0.5)]
    assert rows(arrow(TYPED), arrow(TYPED), schema=typed(n=IntegerType())) == [{"n": 7}, {"n": None}] * 2
    assert rows(arrow(TYPED), schema=typed("sequence")) == [{"sequence": 5}] * 2


def test_ids_of_typed_rows_may_be_of_the_type_that_other_writers_of_arrow_use() -> None:
    wide = TYPED.set_column(1, "id", TYPED.column("id").cast(pa.large_string()))
    assert [r["id"] for r in rows(arrow(TYPED), arrow(wide))] == ["i7", "i8"] * 2


def test_typed_rows_are_json_where_the_schema_does_not_name_their_columns() -> None:
    found = rows(("t", b"plain", None), arrow(TYPED), lines(b"a"))
    assert [r["value"] for r in found[::3]] == [b"plain", b"a"]
    assert [json.loads(r["value"]) for r in found[1:3]] == [
        {"n": 7, "id": "i7", "note": "a"},
        {"n": None, "id": "i8", "note": "b"},
    ]
    assert rows(arrow(TYPED), schema=typed("value"))[0]["value"] == found[1]["value"]


def test_typed_rows_that_have_no_json_are_one_row_that_says_so() -> None:
    far = pa.record_batch({"at": pa.array([1 << 62], pa.timestamp("us", "UTC"))})
    (found,) = rows(arrow(far))
    assert "JSON" in found["pack_error"]
    assert found["value"] == arrow(far)[1]
    nowhere = pa.record_batch({"at": pa.array([1], pa.timestamp("us", "Nowhere/At_All"))})
    (found,) = rows(arrow(nowhere))
    assert found["value"] == b'{"at":"1970-01-01T00:00:00.000001Z"}', "the moment needs no time zone"
    (found,) = rows(arrow(nowhere), schema=typed(at=TimestampType()))
    assert found["at"].timestamp() == 1e-6


def test_many_typed_rows_become_json_a_portion_at_a_time() -> None:
    many = pa.record_batch({"name " * 100: pa.array(range(70_000), pa.int64())})
    portions = list(
        RowUnpacker(options(), message_columns_of(schema_of(options()), options()), "S").batches(records(arrow(many)))
    )
    values = [json.loads(v)["name " * 100] for batch in portions for v in batch["value"].to_pylist()]
    assert values == list(range(70_000))
    assert max(batch["value"].nbytes for batch in portions) < 20 << 20


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (("t", arrow(MESSAGES)[1][:-9], arrow(MESSAGES)[2]), "end"),
        (("t", *lines(b"a", b"b")[1:2], {"Mama-Pack": "lines;v=1", "Mama-Pack-Rows": "3"}), "2 lines and announces 3"),
        (("t", b"", {"Mama-Pack": "zip;v=9", "Mama-Pack-Rows": "3"}), "'zip;v=9' is unknown here"),
        (arrow(TYPED, **{"Mama-Pack-Rows": "1000000"}), "2 rows and announces 1,000,000"),
    ],
    ids=["cut", "wrong count", "unknown", "bomb"],
)
def test_a_pack_that_cannot_be_read_is_one_row_or_an_error(
    message: Message, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mama_spark"):
        before, found, after = rows(lines(b"a"), message, lines(b"b"))
    assert (before["value"], after["value"]) == (b"a", b"b")
    assert reason in found["pack_error"]
    assert (found["value"], found["pack_index"], found["sequence"]) == (message[1], None, 6)
    assert dict(found["headers"])["Mama-Pack"] == [message[2]["Mama-Pack"] if message[2] else ""]
    assert "sequence 6 of stream 'S' cannot be read" in caplog.text
    with pytest.raises(CorruptPack, match=rf"sequence 6 of stream 'S' cannot be read: .*{reason}.*failOnCorrupt=false"):
        rows(lines(b"a"), message, failOnCorrupt="true")


def test_any_damage_to_typed_rows_gives_rows_or_a_reason() -> None:
    """Bytes changed at random, as JSON and in columns of other widths; nothing raises or crashes."""
    many = pa.record_batch(
        {
            "n": pa.array([1, None, 3], pa.int32()),
            "d": pa.array([1, 2, None], pa.decimal128(10, 2)),
            "l": pa.array([[{"q": 1}], None, []], pa.list_(pa.struct([("q", pa.int64())]))),
            "m": pa.array([[("k", 1.5)], [], None], pa.map_(pa.string(), pa.float64())),
            "at": pa.array([1, 2, 3], pa.timestamp("ms", "UTC")),
        }
    )
    wanted = typed("pack_error", n=LongType(), d=DecimalType(20, 4), m=MapType(StringType(), DoubleType()),
                   l=ArrayType(StructType([StructField("q", LongType())])), at=TimestampType())  # fmt: skip
    topic, whole, headers = arrow(many)
    dice, good = random.Random(11), 0
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        for schema in (None, wanted):
            found = rows((topic, bytes(damaged), headers), schema=schema)
            bad = [r["pack_error"] for r in found if r["pack_error"]]
            assert len(found) == (1 if bad else 3)
            good += not bad
    assert 0 < good < 400


def test_a_pack_of_other_types_than_the_schema_is_one_row_or_an_error() -> None:
    schema = typed("value", "pack_error", n=BinaryType())
    found = rows(arrow(TYPED), lines(b"a"), schema=schema)
    assert [(r["value"], r["n"]) for r in found] == [(arrow(TYPED)[1], None), (b"a", None)]
    assert found[0]["pack_error"] == (
        "column 'n' is int, binary is wanted; the message has (n int, id string, note string), .schema() has (n binary)"
    )
    with pytest.raises(CorruptPack, match="'n' is int, binary"):
        rows(arrow(TYPED), schema=schema, failOnCorrupt="true")


MISFITS = {
    "decimal for double": arrow(pa.record_batch({"n": pa.array([1, 2], pa.decimal128(10, 2))})),
    "misspelled": arrow(pa.record_batch({"nn": [1, 2]})),
    "no pack": ("t", b'{"n": 1}', None),
    "values": lines(b'{"n": 1}', b'{"n": 2}'),
    "messages": arrow(MESSAGES),
    "JSON under arrow": ("t", b'{"n": 1}', {"Mama-Pack": "arrow;v=1", "Mama-Pack-Rows": "1"}),
}


@pytest.mark.parametrize("misfit", MISFITS.values(), ids=MISFITS.keys())
def test_a_message_that_does_not_fit_the_schema_fails_is_a_row_of_nulls_or_none(
    misfit: Message, caplog: pytest.LogCaptureFixture
) -> None:
    """What could fill none of the columns never becomes a row of nulls unless somebody asked for it."""
    schema, good = typed("sequence", n=DoubleType()), arrow(pa.record_batch({"n": [0.5]}))
    with pytest.raises(CorruptPack, match=r"sequence 6 of stream 'S' does not fit \.schema\(\): .*mode=PERMISSIVE"):
        rows(good, misfit, schema=schema)
    kept = [{"sequence": 5, "n": 0.5}, {"sequence": 7, "n": 0.5}]
    assert rows(good, misfit, good, schema=schema, mode="DROPMALFORMED") == kept
    assert "1 messages of stream 'S' are left out" in caplog.text
    nulls = {"sequence": 6, "n": None}
    assert rows(good, misfit, good, schema=schema, mode="permissive") == [kept[0], nulls, kept[1]]
    shown = typed("sequence", "pack_error", n=DoubleType())
    (_, found, _) = rows(good, misfit, good, schema=shown)
    assert (found["sequence"], found["n"], bool(found["pack_error"])) == (6, None, True)
    with pytest.raises(CorruptPack, match="sequence 6"):
        rows(good, misfit, schema=shown, mode="failfast")


def test_messages_with_values_fit_a_schema_that_names_value() -> None:
    schema = typed("value", n=DoubleType())
    found = rows(MISFITS["no pack"], MISFITS["values"], MISFITS["messages"], schema=schema)
    assert [row["value"] for row in found] == [b'{"n": 1}', b'{"n": 1}', b'{"n": 2}', b"v0", b"v1"]


def test_columns_that_packs_lack_under_a_similar_name_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert rows(arrow(TYPED), schema=typed(n=LongType(), notes=StringType()))[0] == {"n": 7, "notes": None}
    assert "packs without column 'notes', which is null; did you mean 'note'?" in caplog.text


def test_the_mode_is_refused_where_it_decides_nothing() -> None:
    with pytest.raises(OptionError, match="option mode needs columns of packs"):
        rows(schema=typed("value"), mode="permissive")
    with pytest.raises(OptionError, match="option mode has no effect here"):
        options(mode="permissive", unpack="false")
    with pytest.raises(OptionError, match="mode and failOnCorrupt=true exclude each other"):
        options(mode="permissive", failOnCorrupt="true")


# --- how many rows ---------------------------------------------------------------------------------------------


def put(log: FilledLog, packs: int, rows: int, announced: int | None = None) -> None:
    """Packs of lines."""
    said = str(rows if announced is None else announced)
    log.append([b"\n".join([b"x" * 9] * rows)] * packs, headers={"Mama-Pack": ["lines;v=1"], "Mama-Pack-Rows": [said]})


def test_rows_of_a_sequence_are_estimated_from_the_first_messages(log: FilledLog) -> None:
    put(log, SAMPLE_SEQUENCES, 30)
    put(log, 100, 1)
    assert rows_per_sequence(log.log, 0, 1_000, ()) == 30
    assert rows_per_sequence(log.log, 8, 1_000, ()) == (8 * 30 + 8) / 16
    assert rows_per_sequence(log.log, 16, 1_000, ()) == 1
    assert rows_per_sequence(log.log, 0, 1_000, ("none",)) == 1
    assert rows_per_sequence(log.log, 0, 2, ()) == 30


def test_micro_batches_take_about_as_many_rows_as_they_may_and_say_so(log: FilledLog) -> None:
    put(log, 100, 30)
    stream = log.source(maxRowsPerTrigger="600").streamReader(SCHEMA)
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(600)
    at, seen = stream.initialOffset(), []
    while (end := stream.latestOffset(at, limit)) != at:
        tasks = stream.partitions(at, end)
        seen.append(sum(batch.num_rows for task in tasks for batch in stream.read(task)))
        assert end[log.name]["rows"] == seen[-1]
        at = end
    assert seen == [600] * 5
    assert stream.latestOffset(stream.initialOffset(), ReadAllAvailable())[log.name]["next"] == 101


def test_both_limits_hold_and_a_message_of_more_rows_goes_alone(log: FilledLog) -> None:
    put(log, 20, 500)
    both = log.source(maxRowsPerTrigger="5000", maxOffsetsPerTrigger="3").streamReader(SCHEMA)
    assert both.latestOffset(both.initialOffset(), both.getDefaultReadLimit())[log.name]["next"] == 4
    few = log.source(maxRowsPerTrigger="100").streamReader(SCHEMA)
    end = few.latestOffset(few.initialOffset(), few.getDefaultReadLimit())
    assert (end[log.name]["next"], end[log.name]["rows"]) == (2, 500)


def test_a_lie_about_rows_slows_a_query_and_does_not_stop_it(log: FilledLog) -> None:
    put(log, 40, 2, announced=1_000_000)
    stream = log.source(maxRowsPerTrigger="100").streamReader(SCHEMA)
    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    assert end[log.name]["next"] == 2


def test_tasks_are_as_many_as_the_rows_are_worth(log: FilledLog) -> None:
    put(log, 40, 1_000)
    assert len(log.source().reader(SCHEMA).partitions()) >= 2
    assert len(log.source(unpack="false").reader(PLAIN_SCHEMA).partitions()) == 1
