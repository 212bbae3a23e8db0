"""Which headers a message may have: names, values, sizes, and those by which it expects something."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from mama_spark.contracts.errors import BadRow, TooLarge
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.protocol import headers
from mama_spark.publishing.api import PublishOptions

from tests.support.tables import each

MAX_PAYLOAD = 8 << 20
EXPECTATIONS = PublishOptions(
    expected_stream="S",
    expected_last_msg_id="id",
    expected_last_sequence=1,
    expected_last_subject_sequence=2,
    expected_last_subject_sequence_subject="a.>",
).headers()


@each(
    ("pairs", "why"),
    [
        ({"": ["x"]}, "empty"),
        ({"A b": ["x"]}, "blank"),
        ({"A:": ["x"]}, "colon"),
        ({"A\r\nB": ["x"]}, "control"),
        ({"A": ["x\r\nB: y"]}, "line break"),
        ({"A": ["x\n"]}, "line break"),
        ({"nats-msg-id": ["x"]}, "id column"),
    ],
)
def test_a_header_that_could_break_out_is_refused(pairs: dict[str, list[str]], why: str) -> None:
    batch = MessageBatch.of(["a"] * 3, [b""] * 3, [None, pairs, {"Fine": ["x"]}])
    bad, _ = headers.check(batch, 1000)
    assert list(bad) == [1]
    assert isinstance(bad[1], BadRow)
    assert re.search(why, bad[1].info)


def test_header_and_payload_count_together() -> None:
    ids = ["12345"]
    width = headers.ID_OVERHEAD + 5
    assert not headers.check(MessageBatch.of(["a"], [b"x" * (100 - width)], None, ids), 100)[0]
    bad, _ = headers.check(MessageBatch.of(["a"], [b"x" * (101 - width)], None, ids), 100)
    assert isinstance(bad[0], TooLarge)


def test_ids_with_line_breaks_or_nulls_are_refused() -> None:
    batch = MessageBatch.of(["a"] * 3, [b""] * 3, None, ["ok", "a\r\nb", "c"])
    batch = MessageBatch(batch.topics, batch.payloads, None, pa.array(["ok", "a\r\nb", None]))
    assert sorted(headers.check(batch, 1000)[0]) == [1, 2]


def batch(value: str, ids: list[str] | None) -> MessageBatch:
    return MessageBatch.of(["t"] * 3, [b"x"] * 3, [{"a": ["1"]}, {"big": [value]}, None], ids)


@pytest.mark.parametrize("ids", [None, ["i1", "i2", "i3"]], ids=["no ids", "ids"])
def test_a_header_block_of_64_kib_fails_its_row_alone(ids: list[str] | None) -> None:
    width = headers.blocks(batch("", ids))[1]
    assert width is not None
    most = headers.MAX_BLOCK - int(width[1])
    assert headers.check(batch("v" * most, ids), MAX_PAYLOAD)[0] == {}
    found, _ = headers.check(batch("v" * (most + 1), ids), MAX_PAYLOAD)
    assert list(found) == [1]
    assert isinstance(found[1], TooLarge)
    said = f"the header block has {headers.MAX_BLOCK + 1} bytes, a stream takes {headers.MAX_BLOCK}"
    assert found[1].info.startswith(said)


@each("name", [*EXPECTATIONS, *map(str.lower, EXPECTATIONS)])
def test_an_expectation_makes_its_row_fragile(name: str) -> None:
    rows: list[dict[str, list[str]] | None] = [None, {"a": ["b"], name: ["1"]}, {"Nats-TTL": ["5s"]}]
    bad, non_retriable = headers.check(MessageBatch.of(["t"] * 3, [b""] * 3, rows), 1000)
    assert not bad
    assert non_retriable is not None
    assert non_retriable.tolist() == [False, True, False]


@each("name", ["nats-msg-id", "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit", "Nats-Stream-Source",
    "Nats-Scheduler", "Nats-Schedule-Next", "Nats-Required-Api-Level", "Nats-Trace-Dest", "Nats-Trace-Only",
    "Nats-Trace-Hop", "Nats-Trace-Origin-Account"])  # fmt: skip
def test_headers_that_the_server_reserves_are_refused_with_the_reason(name: str) -> None:
    honoured = {"Nats-Rollup": ["sub"], "Nats-TTL": ["1h"], "Nats-Schedule": ["@every 1h"], "Nats-Marker-Reason": ["x"]}
    rows: list[dict[str, list[str]] | None] = [{name: ["1"]}, honoured]
    bad, _ = headers.check(MessageBatch.of(["t"] * 2, [b""] * 2, rows), 1000)
    assert list(bad) == [0]
    assert name in bad[0].info
