"""Every header by which a message expects something makes a blind resend unsafe."""

from __future__ import annotations

from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.protocol import headers
from mama_spark.publishing.api import PublishOptions

from tests.support.tables import each

EXPECTATIONS = PublishOptions(
    expected_stream="S",
    expected_last_msg_id="id",
    expected_last_sequence=1,
    expected_last_subject_sequence=2,
    expected_last_subject_sequence_subject="a.>",
).headers()


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
