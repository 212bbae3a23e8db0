"""The specification's publisher over both kinds of target: what is published, and what is refused."""

from __future__ import annotations

from time import time

import pytest
from mama_spark.errors import (
    BadRow,
    BadTopic,
    TooLarge,
)
from mama_spark.publisher.api import PublishOptions

from tests.support.publisher_harness import (
    LONG,
    PublisherHarness,
    ack_of,
)


@pytest.mark.spec("MP-01", "MP-02", "MP-11", "MP-12", "MP-15-MP-22", "MP-28", "MP-33", "MP-39", "MP-25")
def test_publish_msg_async(harness: PublisherHarness) -> None:
    """A flight tells all of itself."""
    publisher = harness.publisher().start()
    options = PublishOptions(expected_stream=harness.stream)
    before = time()
    flight = publisher.publish_async("t.b", b"body", {"k": "v"}, options).result(LONG)
    ack = flight.publish_ack_future.result(LONG)
    assert (flight.id, flight.subject, flight.body, flight.headers) == ("p-1", "t.b", b"body", {"k": ["v"]})
    assert flight.options is options
    assert flight.publish_time is not None
    assert before - 1 < flight.publish_time < time() + 1
    assert (ack.stream, ack.sequence, ack.duplicate) == (harness.stream, 1, False)
    publisher.drain(LONG)
    assert harness.listener.events("p-1") == ["published", "acked"]
    (stored,) = harness.held()
    assert (stored.topic, stored.payload, stored.headers["k"]) == ("t.b", b"body", ["v"])
    assert stored.headers["Nats-Expected-Stream"] == [harness.stream]


@pytest.mark.spec("MP-03", "MP-18")
def test_the_id_is_sent_for_deduplication(harness: PublisherHarness) -> None:
    """Two publishers of one prefix give the same ids, and the middleware stores them once."""
    for _ in range(2):
        with harness.publisher(id_prefix="same") as publisher:
            futures = [publisher.publish_async(harness.topic, b"%d" % i) for i in range(3)]
        assert [f.result(0).id for f in futures] == ["same-1", "same-2", "same-3"]
    assert [ack_of(f).result(0).duplicate for f in futures] == [True] * 3
    assert harness.payloads() == [b"0", b"1", b"2"]


def test_publish_msg_async_with_msg_id_is_a_duplicate_the_second_time(harness: PublisherHarness) -> None:
    with harness.publisher() as publisher:
        futures = [publisher.publish_async("t.a", b"x", options=PublishOptions(msg_id="mine")) for _ in range(2)]
        acks = [ack_of(f).result(LONG) for f in futures]
    assert [a.duplicate for a in acks] == [False, True]
    assert acks[0].sequence == acks[1].sequence


@pytest.mark.spec("MP-28")
def test_publish_async_varieties(harness: PublisherHarness) -> None:
    """As testPublishAsyncVarieties and the three plain cases of TestPublishMsgAsync."""
    with harness.publisher() as publisher:
        futures = [
            publisher.publish_async("t.1", b"1"),
            publisher.publish_async("t.2", b"2", {"h": "v"}),
            publisher.publish_async("t.3", b"3", None, PublishOptions(msg_id="three")),
            publisher.publish_async("t.4", b"4", {"h": ["v", "w"]}, PublishOptions(expected_stream=harness.stream)),
            publisher.publish_async("t.5", b""),
        ]
    assert [ack_of(f).result(0).sequence for f in futures] == [1, 2, 3, 4, 5]
    assert [m.topic for m in harness.held()] == ["t.1", "t.2", "t.3", "t.4", "t.5"]
    assert [m.headers.get("h") for m in harness.held()] == [None, ["v"], None, ["v", "w"], None]


@pytest.mark.parametrize(
    ("subject", "body", "headers", "error"),
    [("t.*", b"", None, BadTopic), ("", b"", None, BadTopic), ("t..x", b"", None, BadTopic),
     ("t.x", bytes((1 << 20) + 1), None, TooLarge), ("t.x", bytes((1 << 20) - 5), {"h": "x" * 10}, TooLarge),
     ("t.x", b"", {"h": "x\r\ny"}, BadRow)],
)  # fmt: skip
def test_bad_messages_fail_unsent_and_the_connection_lives(
    harness: PublisherHarness, subject: str, body: bytes, headers: dict[str, str] | None, error: type[Exception]
) -> None:
    """As testMaxPayloadJs and TestPublishMsgAsync, "bad subject"; header and payload count together."""
    with harness.publisher() as publisher:
        with pytest.raises(error):
            publisher.publish_async(subject, body, headers).result(LONG)
        assert ack_of(publisher.publish_async(harness.topic, b"ok")).result(LONG).sequence == 1
    assert harness.payloads() == [b"ok"]
