"""OpenMAMA's own publisher tests by name, where no other test proves the same: those of callbacks that are missing, and
those of what is invalid. Counters are calls of create / error / success / destroy.

C has out-parameters and pointers that may be NULL; here a result is what a function returns, and a bridge's publisher
that was destroyed stands for a NULL one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mama_spark.mama import (
    BridgePublisher,
    Inbox,
    Publisher,
    PublisherState,
    Request,
    Status,
    Transport,
    TransportTopicEvent,
)
from mama_spark.mama.messages.omnm import encode
from mama_spark.testing.waiting import until

from tests.support.mama.mama_harness import CallbackRecorder, MamaHarness, a_message, fails

PAYLOAD = encode(a_message())


@pytest.fixture
def transport(harness: MamaHarness) -> Transport:
    return harness.transport()


# --- C: MamaPublisherTestC ---------------------------------------------------------------------------------------


@pytest.mark.spec("PE-19", "PE-39")
def test_send(harness: MamaHarness, transport: Transport, recorder: CallbackRecorder) -> None:
    """Create as before the specification, and publishing works."""
    publisher = Publisher.create(transport, harness.symbol, harness.source)
    publisher.send(a_message(7))
    publisher.destroy()
    assert recorder.counters == (0, 0, 0, 0)
    until(lambda: [m.payload for m in harness.held()] == [encode(a_message(7))])


@pytest.mark.spec("PE-41", "PE-46")
def test_event_send_with_callbacks_no_error_callback(
    harness: MamaHarness, transport: Transport, recorder: CallbackRecorder
) -> None:
    """Ten sends that return OK and are then denied."""
    harness.deny()
    transport.set_transport_topic_callback(recorder.on_topic)
    callbacks = recorder.callbacks("create", "success", "destroy")
    publisher = Publisher.create_with_callbacks(transport, None, harness.symbol, harness.denied, None, callbacks)
    for i in range(10):
        publisher.send(a_message(i))
        assert publisher.state is PublisherState.LIVE
    publisher.destroy()
    if not harness.publisher_style:
        denied = [(event, topic) for event, topic, info in recorder.topics if "permission" in info]
        assert denied == [(TransportTopicEvent.PUBLISH_ERROR_NOT_ENTITLED, f"denied.{harness.symbol}")] * 10
    assert recorder.counters == (1, 0, 0, 1)


# --- C: middlewarePublisherTests, the bridge called directly ----------------------------------------------------


class Bridge:
    """Three publishers of the bridge's side, one of them destroyed, and what they need."""

    def __init__(self, harness: MamaHarness, transport: Transport) -> None:
        self.transport = transport
        self.parent = Publisher.create(transport, harness.symbol, harness.source)
        self.made = BridgePublisher.create(transport, harness.symbol, harness.source, None, self.parent)
        self.gone = BridgePublisher.create(transport, harness.symbol, harness.source, None, self.parent)
        self.gone.destroy(60)
        self.inbox = Inbox.create(transport, None, lambda msg, closure: None)
        self.request = Request(a_message(), "t.x", "t.reply")


@pytest.fixture
def bridge(harness: MamaHarness, transport: Transport) -> Bridge:
    return Bridge(harness, transport)


#: Parts that are NULL are legal: the tests are disabled upstream.
LEGAL = {
    "createByIndexInvalidTopic": ((None, "t", "R"), "R.t"),
    "createByIndexInvalidSource": (("S", None, "R"), "R.S"),
    "createByIndexInvalidRoot": (("S", "t", None), "t.S"),
}


@pytest.mark.parametrize("name", LEGAL)
def test_create_by_index_without_a_part(transport: Transport, bridge: Bridge, name: str) -> None:
    parts, topic = LEGAL[name]
    assert BridgePublisher.create_by_index(transport, 0, *parts, bridge.parent).topic == topic


NULL, INVALID = Status.NULL_ARG, Status.INVALID_ARG
NO_INBOX = Request(a_message(), "t.x", None)
create, create_by_index = BridgePublisher.create, BridgePublisher.create_by_index
#: What is called, and how it is refused.
REFUSED: dict[str, list[tuple[Status, Callable[[Bridge], object]]]] = {
    "createByIndexInvalidResult": [
        (Status.BAD_SYMBOL, lambda b: create_by_index(b.transport, 0, "a b", "t", None, b.parent)),
        (INVALID, lambda b: create_by_index(b.transport, 1, "a", "t", None, b.parent)),
    ],
    "createByIndexInvalidTport": [(NULL, lambda b: create_by_index(None, 0, "S", None, None, b.parent))],
    "createByIndexInvalidParent": [(NULL, lambda b: create_by_index(b.transport, 0, "S", None, None, None))],
    "createInvalidResult": [(Status.BAD_SYMBOL, lambda b: create(b.transport, "a.*.b", "t", None, b.parent))],
    "createInvalidTport": [(NULL, lambda b: create(None, "S", None, None, b.parent))],
    "createInvalidPublisher": [(NULL, lambda b: create(b.transport, "S", None, None, None))],
    "destroyInvalid": [(NULL, lambda b: b.gone.destroy(1.0))],
    "sendInvalidPublisherBridge": [(NULL, lambda b: b.gone.send(PAYLOAD))],
    "sendInvalidMsg": [(NULL, lambda b: b.made.send(None))],
    "sendReplyToInboxInvalidPublisherBridge": [(NULL, lambda b: b.gone.send_reply_to_inbox(b.request, PAYLOAD))],
    "sendReplyToInboxInvalidRequest": [
        (NULL, lambda b: b.made.send_reply_to_inbox(None, PAYLOAD)),
        (INVALID, lambda b: b.made.send_reply_to_inbox(NO_INBOX, PAYLOAD)),
    ],
    "sendReplyToInboxInvalidReply": [(NULL, lambda b: b.made.send_reply_to_inbox(b.request, None))],
    "sendReplyToInboxHandleInvalidPublisherBridge": [
        (NULL, lambda b: b.gone.send_reply_to_inbox_handle("t.reply", PAYLOAD))
    ],
    "sendReplyToInboxHandleInvalidRequest": [(NULL, lambda b: b.made.send_reply_to_inbox_handle(None, PAYLOAD))],
    "sendReplyToInboxHandleInvalidReply": [(NULL, lambda b: b.made.send_reply_to_inbox_handle("t.reply", None))],
    "sendFromInboxByIndexInvalidPublisherBridge": [
        (NULL, lambda b: b.gone.send_from_inbox_by_index(0, b.inbox, PAYLOAD))
    ],
    "sendFromInboxByIndexInvalidInbox": [(NULL, lambda b: b.made.send_from_inbox_by_index(0, None, PAYLOAD))],
    "sendFromInboxByIndexInvalidMsg": [
        (NULL, lambda b: b.made.send_from_inbox_by_index(0, b.inbox, None)),
        (INVALID, lambda b: b.made.send_from_inbox_by_index(1, b.inbox, PAYLOAD)),
    ],
    "sendFromInboxInvalidPublisherBridge": [(NULL, lambda b: b.gone.send_from_inbox(b.inbox, PAYLOAD))],
    "sendFromInboxInvalidInbox": [(NULL, lambda b: b.made.send_from_inbox(None, PAYLOAD))],
    "sendFromInboxInvalidMsg": [(NULL, lambda b: b.made.send_from_inbox(b.inbox, None))],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_invalid_is_refused_and_leaves_nothing(transport: Transport, bridge: Bridge, name: str) -> None:
    for status, call in REFUSED[name]:
        fails(status, call, bridge)
    assert transport.find_publishers("t.a b") == transport.find_publishers("t.a.*.b") == []


# --- C++: MamaPublisherTest --------------------------------------------------------------------------------------


@pytest.mark.spec("PE-40")
def test_publish_with_null_callback(harness: MamaHarness, transport: Transport) -> None:
    """NULL instead of callbacks; and the source is a bad one."""
    harness.deny()
    publisher = Publisher.create_with_callbacks(transport, None, harness.symbol, harness.denied, None, None)
    for i in range(10):
        publisher.send(a_message(i))
    publisher.destroy()
    assert publisher.get_user_callbacks() is None
