"""What is said of a stream that may remove records before they are read."""

from __future__ import annotations

from typing import Any

from mama_spark.nats.jetstream.answers import StreamInfo
from mama_spark.nats.read import retention

from tests.support.tables import each

KEEPS = {"retention": "limits", "discard": "old", "max_msgs": -1, "max_bytes": -1, "max_age": 0,
         "max_msgs_per_subject": -1}  # fmt: skip


@each(
    ("config", "said"),
    [
        ({}, []),
        ({"max_msgs": 100, "discard": "new"}, []),
        ({"max_bytes": 100, "discard": "new"}, []),
        ({"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}, []),
        ({"max_msgs": 100}, ["keeps the last 100 records (max_msgs)"]),
        ({"max_bytes": 5000}, ["keeps the last 5000 bytes (max_bytes)"]),
        ({"max_age": 3600 * 10**9, "discard": "new"}, ["removes records after 1 h (max_age)"]),
        ({"max_age": 90 * 10**9}, ["removes records after 1.5 min (max_age)"]),
        ({"max_age": 5}, ["removes records after 5 ns (max_age)"]),
        ({"max_msgs_per_subject": 1, "discard": "new"}, ["keeps the last 1 records of each subject (max_msgs_per"]),
        ({"allow_msg_ttl": True}, ["Nats-TTL"]),
        ({"max_msgs": 5, "allow_rollup_hdrs": True}, ["keeps the last 5 records", "allow_rollup_hdrs"]),
    ],
)
def test_each_limit_that_removes_records_is_one_sentence(config: dict[str, Any], said: list[str]) -> None:
    found = retention.warnings(StreamInfo.of({"config": {"name": "S", **KEEPS, **config}}))
    assert len(found) == len(said)
    assert all(text.startswith("stream 'S' ") and words in text for text, words in zip(found, said, strict=True))
    assert retention.warnings(StreamInfo.of({"config": {"name": "S"}})) == []


@each(
    ("config", "between"),
    [
        ({"max_msgs": 100, "max_age": 5}, False),
        ({"max_msgs_per_subject": 1}, True),
        ({"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}, False),
        ({"allow_rollup_hdrs": True}, True),
        ({"allow_msg_ttl": True}, True),
    ],
)
def test_limits_that_remove_records_between_others(config: dict[str, Any], between: bool) -> None:
    assert retention.removal(StreamInfo.of({"config": {"name": "S", **KEEPS, **config}})).between is between


@each(
    ("config", "since"),
    [
        ({"max_msgs_per_subject": 1, "discard": "new", "max_bytes": 5, "allow_msg_ttl": True}, 0),
        ({"max_msgs_per_subject": 5, "max_age": 10**9, "subject_delete_marker_ttl": 10**9}, 0),
        ({"max_msgs_per_subject": 5, "max_age": 10**9}, 59_000_000),
        ({"max_msgs_per_subject": 5, "max_bytes": 5}, None),
        ({"allow_rollup_hdrs": True}, None),
    ],
)
def test_a_limit_that_only_replaces_values_loses_none(config: dict[str, Any], since: int | None) -> None:
    answer = {"config": {"name": "S", **KEEPS, **config}, "ts": "1970-01-01T00:01:00Z"}
    assert retention.removal(StreamInfo.of(answer)).replaced_since == since
