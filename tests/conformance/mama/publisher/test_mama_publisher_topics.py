"""Publisher events: topics that are bad, empty, or taken by no stream."""

from __future__ import annotations

from typing import Any

import pytest
from mama_spark.mama import (
    Publisher,
    PublisherState,
    Queue,
    Status,
)
from mama_spark.testing.waiting import until

from tests.support.mama.mama_harness import (
    CallbackRecorder,
    MamaHarness,
    NatsMamaHarness,
    a_message,
    fails,
    published,
)


@pytest.mark.spec("PE-22-PE-24")
def test_root_source_symbol_and_topic_can_be_asked_for(harness: MamaHarness) -> None:
    """And travel in headers"""
    transport = harness.transport()
    publisher = Publisher.create(transport, harness.symbol, "b", harness.source)
    assert (publisher.root, publisher.source, publisher.symbol) == (harness.source, "b", harness.symbol)
    assert publisher.topic == f"{harness.source}.b.{harness.symbol}"
    plain = Publisher.create(transport, harness.symbol, harness.source)
    assert (plain.root, plain.transport) == (None, transport)
    plain.send(b"bytes go as they are")
    plain.destroy()
    until(lambda: len(harness.held()) == 1)
    (held,) = harness.held()
    assert held.payload == b"bytes go as they are"
    assert held.headers == {"Mama-Source": [harness.source], "Mama-Symbol": [harness.symbol]}


@pytest.mark.spec("PE-31")
@pytest.mark.parametrize("symbol", ["a b", "a..b", "a.*.b", "a.>", "x" * 200])
def test_a_bad_topic_is_bad_symbol_at_create(harness: MamaHarness, recorder: CallbackRecorder, symbol: str) -> None:
    """Nothing is returned and nothing is called"""
    queue = Queue()
    fails(
        Status.BAD_SYMBOL, Publisher.create_with_callbacks, harness.transport(), queue, symbol, harness.source, None,
        recorder.callbacks(),
    )  # fmt: skip
    assert recorder.heard == []
    queue.destroy()


def test_the_empty_topic_is_legal_at_create_and_bad_symbol_at_send(
    harness: MamaHarness, recorder: CallbackRecorder
) -> None:
    publisher = Publisher.create_with_callbacks(harness.transport(), None, None, None, None, recorder.callbacks())
    assert (publisher.topic, publisher.state) == ("", PublisherState.LIVE)
    fails(Status.BAD_SYMBOL, publisher.send, a_message())
    publisher.destroy()
    assert recorder.counters == (1, 0, 0, 1), "a failure that is returned is no callback"


@pytest.mark.spec("PE-31", "PE-32")
def test_what_fails_at_once_is_returned_and_no_callback_comes(harness: MamaHarness, recorder: CallbackRecorder) -> None:
    transport = harness.transport()
    publisher = published(harness, transport, recorder)
    fails(Status.NULL_ARG, publisher.send, None)
    fails(Status.INVALID_ARG, publisher.send, b"x" * (2 << 20))
    fails(Status.INVALID_ARG, publisher.send, "text")
    fails(Status.INVALID_ARG, Publisher.create, None, "S")
    publisher.destroy()
    fails(Status.NULL_ARG, publisher.send, a_message())
    assert recorder.counters == (1, 0, 0, 1)


@pytest.mark.spec("PE-15")
def test_a_topic_that_no_stream_takes_is_told_with_the_middlewares_text(
    nats_with_users: Any,
    recorder: CallbackRecorder,
) -> None:
    on = NatsMamaHarness(*nats_with_users)
    publisher = Publisher.create_with_callbacks(on.transport(), None, on.symbol, "nowhere", None, recorder.callbacks())
    fails(Status.PLATFORM, publisher.send, a_message(), match="no stream takes topic")
    on.close()
