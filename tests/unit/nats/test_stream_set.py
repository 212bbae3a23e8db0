"""Which member of a stream set a topic belongs to."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.nats.stream_set import StreamSet, partition
from mama_spark.options.stream_names import StreamRange


def of_the_server(topic: str, count: int) -> int:
    """``getHashPartition`` of nats-server: FNV-1a with 32 bits."""
    found = 2166136261
    for byte in topic.encode():
        found = ((found ^ byte) * 16777619) & 0xFFFFFFFF
    return found % count


@given(st.lists(st.text() | st.none(), max_size=20), st.integers(1, 1_000), st.integers(0, 5))
def test_members_are_those_that_the_server_would_choose(topics: list[str | None], count: int, skipped: int) -> None:
    column = pa.array(["skipped"] * skipped + topics, pa.string()).slice(skipped)
    found = partition(column, count).tolist()
    assert len(found) == len(topics)
    assert all(n == of_the_server(t, count) for t, n in zip(topics, found, strict=True) if t is not None)


def test_subjects_lead_to_members() -> None:
    streams = StreamSet(StreamRange("orders-", 4))
    topics = pa.array(["orders.r10", "orders.r0", "orders.r10"]).dictionary_encode()
    subjects, _ = streams.route(topics)
    assert subjects.to_pylist() == [
        "stream-set.orders.1.orders.r10", "stream-set.orders.0.orders.r0", "stream-set.orders.1.orders.r10",
    ]  # fmt: skip
    assert streams.streams_of(["orders.r10", "orders.r0"]) == ["orders-1", "orders-0"]
    assert streams.stream_of_subject("stream-set.orders.1.orders.r10") == "orders-1"
    assert streams.config_of(1) == {
        "name": "orders-1",
        "subjects": ["stream-set.orders.1.>"],
        "subject_transform": {"src": "stream-set.orders.1.>", "dest": ">"},
        "metadata": {"mama-spark.streams": "orders-{0..3}"},
    }


@given(st.lists(st.sampled_from([f"orders.r{n}" for n in range(9)]), max_size=40), st.integers(1, 5), st.integers(0, 3))
def test_messages_of_a_member_are_sent_together_and_those_of_a_topic_in_order(
    topics: list[str], count: int, skipped: int
) -> None:
    column = pa.array([*["orders.r0"] * skipped, *topics], pa.string()).dictionary_encode().slice(skipped)
    subjects, order = StreamSet(StreamRange("orders-", count)).route(column)
    assert sorted(order.tolist()) == list(range(len(topics)))
    members = [of_the_server(topics[row], count) for row in order.tolist()]
    assert members == sorted(members)
    for topic in set(topics):
        rows = [row for row in order.tolist() if topics[row] == topic]
        assert rows == sorted(rows)
    assert [subject.split(".", 3)[3] for subject in subjects.to_pylist()] == topics


def test_sets_with_other_names_have_other_subjects() -> None:
    names = [StreamSet(StreamRange(before, 2, after)).name for before, after in (("a-", ""), ("a", "-b"), ("", ""))]
    assert names == ["a", "a-b", "streams"]
