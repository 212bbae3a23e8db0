"""Rows as changes of keys in a bucket."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from mama_spark.contracts.errors import OptionError, SchemaError
from mama_spark.nats.key_rows import KeyCodec
from mama_spark.options import SinkOptions

TYPES = {
    "key": pa.string(),
    "value": pa.binary(),
    "operation": pa.string(),
    "expectedrevision": pa.int64(),
    "ttl": pa.string(),
}
NO_KEY = "letters, digits, and - / _ = or a dot that is not at an end"


def encoded(
    rows: list[dict[str, Any]], ttl: float | None = None
) -> tuple[list[str], list[bytes], list[dict[str, str]], dict[int, str]]:
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(TYPES))
    found = KeyCodec(lambda: "$KV.B.", ttl).encode(batch)
    headers: list[dict[str, str]] = [{} for _ in rows]
    for entries in found.headers:
        for row, name, (value,) in zip(
            entries.rows, entries.names.to_pylist(), entries.values.to_pylist(), strict=True
        ):
            headers[row][name] = value
    return found.topics.to_pylist(), found.payloads.to_pylist(), headers, {row: e.info for row, e in found.bad}


def test_good_rows() -> None:
    topics, payloads, headers, bad = encoded(
        [
            {"key": "a/b=c.d-e_F", "value": b"1"},
            {"key": "a", "value": b"", "operation": "put", "expectedrevision": 2**62, "ttl": "90m"},
            {"key": "a", "value": b"left", "operation": "delete", "expectedrevision": 0},
            {"key": "a", "operation": "purge", "ttl": "1500ms"},
            {"key": "a", "operation": "purge"},
            {"key": "a", "operation": "expired", "ttl": "2s"},
        ],
        ttl=30.0,
    )
    assert topics == ["$KV.B.a/b=c.d-e_F", *["$KV.B.a"] * 5]
    assert payloads == [b"1", *[b""] * 5]
    assert headers == [
        {"Nats-TTL": "30"},
        {"Nats-Expected-Last-Subject-Sequence": str(2**62), "Nats-TTL": "5400"},
        {"KV-Operation": "DEL", "Nats-Expected-Last-Subject-Sequence": "0"},
        {"KV-Operation": "PURGE", "Nats-Rollup": "sub", "Nats-TTL": "1500ms"},
        {"KV-Operation": "PURGE", "Nats-Rollup": "sub"},
        {"KV-Operation": "PURGE", "Nats-Rollup": "sub", "Nats-TTL": "2"},
    ]
    assert bad == {}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"key": None, "value": b"1"}, "the key is null"),
        ({"key": "ä", "value": b"1"}, f"no key is 'ä': {NO_KEY}"),
        ({"key": "a"}, "the value is null: a put needs one"),
        ({"key": "a", "value": b"1", "operation": "PUT"}, "no operation is 'PUT': put, delete, purge or expired"),
        ({"key": "a", "value": b"1", "expectedrevision": -1}, "no revision is -1: the last one of the key, or 0"),
        ({"key": "a", "value": b"1", "ttl": "soon"}, "the ttl must be a positive duration, such as 500ms, 30s, 5m, 2h"),
        ({"key": "a", "operation": "delete", "ttl": "5s"}, "a delete has no ttl: the key keeps its earlier values"),
    ],
)
def test_a_bad_row_fails_alone(row: dict[str, Any], why: str) -> None:
    good = {"key": "a", "value": b"1"}
    topics, payloads, _, bad = encoded([good, row, good])
    assert (topics[::2], payloads[::2], [*bad]) == (["$KV.B.a"] * 2, [b"1"] * 2, [1])
    assert bad[1].startswith(why)


def test_text_that_is_no_utf8_fails_its_row() -> None:
    """Strings of Spark may hold any bytes."""
    raw = pa.array([b"\xff", b"a"], pa.binary())
    text = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    for name in ("key", "operation", "ttl"):
        columns = {"key": pa.array(["a", "a"]), "value": pa.array([b"", b""]), name: text}
        if name == "operation":
            columns[name] = pa.concat_arrays([text.slice(0, 1), pa.array(["put"])])
        bad = KeyCodec(lambda: "$KV.B.").encode(pa.record_batch(columns)).bad
        assert bad[0][0] == 0, name


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"key": pa.int64(), "value": pa.binary()}, "column 'key' must be string; it is int64"),
        ({"key": pa.string(), "value": pa.int64()}, "column 'value' must be binary or string; it is int64"),
        ({"key": pa.string(), "expectedrevision": pa.int64()}, "no column 'value' (binary or string)"),
    ],
)
def test_columns_of_other_types_are_refused(columns: dict[str, pa.DataType], why: str) -> None:
    with pytest.raises(SchemaError) as e:
        KeyCodec(str).check(pa.schema(columns))
    assert str(e.value) == why


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"topic": "a"}, "options bucket and topic exclude each other: a bucket has keys"),
        ({"stream": "S"}, "options bucket and stream exclude each other: a bucket has keys"),
        ({"pack": "lines"}, "options bucket and pack exclude each other: a bucket has keys"),
        ({"ackMode": "batch"}, "option ackMode=batch does not go with bucket"),
        ({"ttl": "500ms"}, "option ttl must be a second at least"),
        ({"bucket": "a.b"}, "option bucket must be letters, digits, - and _"),
        ({"url": "mlp://h:1"}, "option bucket is for NATS, and the url is of Malamute: leave it out"),
    ],
)
def test_options_that_do_not_go_with_a_bucket(options: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError) as e:
        SinkOptions.parse({"url": "nats://h", "bucket": "B", **options})
    assert str(e.value).startswith(why)
