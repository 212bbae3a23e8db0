"""What a task of ``mamasub`` makes of messages, packed and not: rows, columns, and what is wrong with them."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import CorruptPack, OptionError, SchemaError
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.spark.subscribe.packed_rows import SAMPLE_SEQUENCES, rows_per_sequence
from mama_spark.spark.subscribe.schema import PLAIN_SCHEMA, SCHEMA, message_columns_of
from pyspark.sql import types as T
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.support.spark.memory_harness import FilledLog
from tests.support.spark.unpacked_rows import Message, batches_of, options, records, rows, rows_of
from tests.support.tables import each

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


def typed(*names: str, **more: Any) -> T.StructType:
    known = {f.name: f for f in SCHEMA.fields}
    fields = [known[name] for name in names]
    return T.StructType([*fields, *(T.StructField(name, kind) for name, kind in more.items())])


def test_a_message_is_a_row_of_all_that_its_log_knows_without_columns_of_packs_where_none_is_unpacked() -> None:
    found, _ = rows(("t.p", b"plain", {"k": "v", "Nats-Msg-Id": "m"}), ("t.q", b"", None))
    assert found == {
        "topic": "t.p", "value": b"plain", "headers": [("k", ["v"])], "stream": "S", "sequence": 5, "pack_index": None,
        "timestamp": datetime.fromtimestamp(0, UTC), "id": "m", "pack_error": None,
    }  # fmt: skip
    assert set(SCHEMA.names) - set(rows(("t", b"", None), unpack="false")[0]) == {"pack_index", "pack_error"}


@each("offset", [0, 2])
@each(
    ("headers", "ids", "left"),
    [
        ([[("Nats-Msg-Id", ["1"])], [("Nats-Msg-Id", ["2"])]], ["1", "2"], [None, None]),
        (
            [[("a", ["b"]), ("Nats-Msg-Id", ["1", "2"]), ("c", [""])], None, [("d", ["e", "f"])]],
            ["1", None, None],
            [[("a", ["b"]), ("c", [""])], None, [("d", ["e", "f"])]],
        ),
        ([[("Nats-Msg-Id", ["1"]), ("Nats-Msg-Id", ["2"])]], ["1"], [None]),
        ([[("Nats-Msg-Id", [])], [("nats-msg-id", ["x"])]], [None, None], [None, [("nats-msg-id", ["x"])]]),
    ],
)
def test_the_id_stands_in_its_own_column_as_the_sink_takes_it(
    headers: list[Any], ids: list[Any], left: list[Any], offset: int
) -> None:
    """``offset``: rows before the first one in the memory of the header column, which a slice leaves out."""
    column = pa.array([*[[("before", ["x", "y"])]] * offset, *headers], HEADERS_TYPE).slice(offset)
    found = rows_of(replace(records(*[("t", b"", None)] * len(headers)), headers=column))
    assert [(row["id"], row["headers"]) for row in found] == list(zip(ids, left, strict=True))


@each(
    ("field", "given", "reason"),
    [
        (T.StructField("timestamp", T.LongType()), {}, "column 'timestamp' of mamasub is timestamp, not bigint"),
        (T.StructField("n", T.LongType()), {"unpack": "false"}, "no column 'n' here.*choose among topic string"),
        (T.StructField("n", T.LongType()), {"tango": "true"}, "no column 'n' here"),
        (T.StructField("n", T.LongType(), nullable=False), {}, "column 'n': nulls must be allowed"),
        (T.StructField("sequence", T.LongType(), nullable=False), {}, "column 'sequence': nulls must be allowed"),
        (T.StructField("n", T.ArrayType(T.LongType(), containsNull=False)), {}, "column 'n': nulls must be allowed"),
        (T.StructField("topic", T.StringType()), {}, "two columns 'topic'"),
    ],
)
def test_schemas_that_cannot_be_are_refused(field: T.StructField, given: dict[str, str], reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        message_columns_of(T.StructType([T.StructField("topic", T.StringType()), field]), options(**given))


def test_packed_and_plain_messages_mix_and_every_row_knows_its_place() -> None:
    found = rows(("t.p", b"plain", {"k": "v", "Nats-Msg-Id": "m"}), lines(b"a", b"", b"c", k="w"), arrow(MESSAGES))
    assert [(r["topic"], r["sequence"], r["pack_index"]) for r in found] == [
        ("t.p", 5, None), *(("t.lines", 6, i) for i in range(3)), *(("t.arrow", 7, i) for i in range(2)),
    ]  # fmt: skip
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


def test_headers_are_left_out_when_they_are_not_wanted_and_ids_stay() -> None:
    found = rows(ANY[0], lines(b"a", k="w"), arrow(MESSAGES), includeHeaders="false")
    assert [r["headers"] for r in found] == [None] * 4
    assert [r["id"] for r in found] == ["m", None, "id-0", None]


def test_columns_of_the_schema_come_from_typed_packs_and_are_null_elsewhere() -> None:
    schema = typed("sequence", "value", "id", note=T.StringType(), n=T.LongType(), none=T.DoubleType())
    few = pa.record_batch({"none": [0.5]})
    found = rows(("t", b"plain", None), arrow(TYPED), lines(b"a"), arrow(TYPED), schema=schema)
    pack = [(7, "a", "i7", None), (None, "b", "i8", None)]
    assert [(r["n"], r["note"], r["id"], r["value"]) for r in found] == [
        (None, None, None, b"plain"), *pack, (None, None, None, b"a"), *pack,
    ]  # fmt: skip
    assert [r["none"] for r in found] == [None] * 6
    found = rows(arrow(TYPED), arrow(few), lines(b"a"), arrow(few), schema=schema)
    assert [(r["n"], r["none"]) for r in found] == [(7, None), (None, None), (None, 0.5), (None, None), (None, 0.5)]
    assert rows(arrow(TYPED), arrow(TYPED), schema=typed(n=T.IntegerType())) == [{"n": 7}, {"n": None}] * 2
    assert rows(arrow(TYPED), schema=typed("sequence")) == [{"sequence": 5}] * 2
    of_other_writers = TYPED.set_column(1, "id", TYPED.column("id").cast(pa.large_string()))
    assert [r["id"] for r in rows(arrow(TYPED), arrow(of_other_writers))] == ["i7", "i8"] * 2
    assert rows(("t", b"plain", None), schema=typed("timestamp", n=T.LongType()), mode="permissive")[0]["n"] is None


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
    (found,) = rows(arrow(nowhere), schema=typed(at=T.TimestampType()))
    assert found["at"].timestamp() == 1e-6


def test_many_typed_rows_become_json_a_portion_at_a_time() -> None:
    many = pa.record_batch({"name " * 100: pa.array(range(70_000), pa.int64())})
    portions = batches_of(records(arrow(many)))
    values = [json.loads(v)["name " * 100] for batch in portions for v in batch["value"].to_pylist()]
    assert values == list(range(70_000))
    assert max(batch["value"].nbytes for batch in portions) < 20 << 20


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (("t", arrow(MESSAGES)[1][:-9], arrow(MESSAGES)[2]), "end"),
        (("t", *lines(b"a", b"b")[1:2], {"Mama-Pack": "lines;v=1", "Mama-Pack-Rows": "3"}), "2 lines and announces 3"),
        (("t", b"", {"Mama-Pack": "zip;v=9", "Mama-Pack-Rows": "3"}), "'zip;v=9' is unknown here"),
    ],
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
    wanted = typed("pack_error", n=T.LongType(), d=T.DecimalType(20, 4), m=T.MapType(T.StringType(), T.DoubleType()),
                   l=T.ArrayType(T.StructType([T.StructField("q", T.LongType())])), at=T.TimestampType())  # fmt: skip
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
    schema = typed("value", "pack_error", n=T.BinaryType())
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
    schema, good = typed("sequence", n=T.DoubleType()), arrow(pa.record_batch({"n": [0.5]}))
    with pytest.raises(CorruptPack, match=r"sequence 6 of stream 'S' does not fit \.schema\(\): .*mode=PERMISSIVE"):
        rows(good, misfit, schema=schema)
    kept = [{"sequence": 5, "n": 0.5}, {"sequence": 7, "n": 0.5}]
    assert rows(good, misfit, good, schema=schema, mode="DROPMALFORMED") == kept
    assert "1 messages of stream 'S' are left out" in caplog.text
    nulls = {"sequence": 6, "n": None}
    assert rows(good, misfit, good, schema=schema, mode="permissive") == [kept[0], nulls, kept[1]]
    shown = typed("sequence", "pack_error", n=T.DoubleType())
    (_, found, _) = rows(good, misfit, good, schema=shown)
    assert (found["sequence"], found["n"], bool(found["pack_error"])) == (6, None, True)
    with pytest.raises(CorruptPack, match="sequence 6"):
        rows(good, misfit, schema=shown, mode="failfast")


def test_messages_with_values_fit_a_schema_that_names_value() -> None:
    schema = typed("value", n=T.DoubleType())
    found = rows(MISFITS["no pack"], MISFITS["values"], MISFITS["messages"], schema=schema)
    assert [row["value"] for row in found] == [b'{"n": 1}', b'{"n": 1}', b'{"n": 2}', b"v0", b"v1"]


def test_columns_that_packs_lack_under_a_similar_name_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert rows(arrow(TYPED), schema=typed(n=T.LongType(), notes=T.StringType()))[0] == {"n": 7, "notes": None}
    assert "packs without column 'notes', which is null; did you mean 'note'?" in caplog.text


def test_the_mode_is_refused_where_it_decides_nothing() -> None:
    with pytest.raises(OptionError, match="option mode needs columns of packs"):
        rows(schema=typed("value"), mode="permissive")


# --- how many rows ---------------------------------------------------------------------------------------------


def put(log: FilledLog, packs: int, rows: int) -> None:
    """Packs of lines."""
    headers = {"Mama-Pack": ["lines;v=1"], "Mama-Pack-Rows": [str(rows)]}
    log.append([b"\n".join([b"x" * 9] * rows)] * packs, headers=headers)


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


def test_tasks_are_as_many_as_the_rows_are_worth(log: FilledLog) -> None:
    put(log, 40, 1_000)
    assert len(log.source().reader(SCHEMA).partitions()) >= 2
    assert len(log.source(unpack="false").reader(PLAIN_SCHEMA).partitions()) == 1
