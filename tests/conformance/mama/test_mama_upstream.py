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

from tests.support.mama.mama_harness import CallbackRecorder, MamaHarness, a_message, fails
from tests.support.tables import each

PAYLOAD = encode(a_message())


@pytest.mark.spec("PE-41", "PE-46")
def test_event_send_with_callbacks_no_error_callback(harness: MamaHarness, recorder: CallbackRecorder) -> None:
    """Ten sends that return OK and are then denied."""
    harness.deny()
    transport = harness.transport()
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
def bridge(harness: MamaHarness) -> Bridge:
    return Bridge(harness, harness.transport())


NULL, INVALID, BAD = Status.NULL_ARG, Status.INVALID_ARG, Status.BAD_SYMBOL
NO_INBOX, TO = Request(a_message(), "t.x", None), "t.reply"
create, create_by_index = BridgePublisher.create, BridgePublisher.create_by_index
#: The name upstream, and what is called and how it is refused.
REFUSED: list[tuple[str, Status, Callable[[Bridge], object]]] = [
    ("createByIndexInvalidResult", BAD, lambda b: create_by_index(b.transport, 0, "a b", "t", None, b.parent)),
    ("createByIndexInvalidResult", INVALID, lambda b: create_by_index(b.transport, 1, "a", "t", None, b.parent)),
    ("createByIndexInvalidTport", NULL, lambda b: create_by_index(None, 0, "S", None, None, b.parent)),
    ("createByIndexInvalidParent", NULL, lambda b: create_by_index(b.transport, 0, "S", None, None, None)),
    ("createInvalidResult", BAD, lambda b: create(b.transport, "a.*.b", "t", None, b.parent)),
    ("createInvalidTport", NULL, lambda b: create(None, "S", None, None, b.parent)),
    ("createInvalidPublisher", NULL, lambda b: create(b.transport, "S", None, None, None)),
    ("destroyInvalid", NULL, lambda b: b.gone.destroy(1.0)),
    ("sendInvalidPublisherBridge", NULL, lambda b: b.gone.send(PAYLOAD)),
    ("sendInvalidMsg", NULL, lambda b: b.made.send(None)),
    ("sendReplyToInboxInvalidPublisherBridge", NULL, lambda b: b.gone.send_reply_to_inbox(b.request, PAYLOAD)),
    ("sendReplyToInboxInvalidRequest", NULL, lambda b: b.made.send_reply_to_inbox(None, PAYLOAD)),
    ("sendReplyToInboxInvalidRequest", INVALID, lambda b: b.made.send_reply_to_inbox(NO_INBOX, PAYLOAD)),
    ("sendReplyToInboxInvalidReply", NULL, lambda b: b.made.send_reply_to_inbox(b.request, None)),
    ("sendReplyToInboxHandleInvalidPublisherBridge", NULL, lambda b: b.gone.send_reply_to_inbox_handle(TO, PAYLOAD)),
    ("sendReplyToInboxHandleInvalidRequest", NULL, lambda b: b.made.send_reply_to_inbox_handle(None, PAYLOAD)),
    ("sendReplyToInboxHandleInvalidReply", NULL, lambda b: b.made.send_reply_to_inbox_handle(TO, None)),
    ("sendFromInboxByIndexInvalidPublisherBridge", NULL, lambda b: b.gone.send_from_inbox_by_index(0, b.inbox, b"")),
    ("sendFromInboxByIndexInvalidInbox", NULL, lambda b: b.made.send_from_inbox_by_index(0, None, PAYLOAD)),
    ("sendFromInboxByIndexInvalidMsg", NULL, lambda b: b.made.send_from_inbox_by_index(0, b.inbox, None)),
    ("sendFromInboxByIndexInvalidMsg", INVALID, lambda b: b.made.send_from_inbox_by_index(1, b.inbox, PAYLOAD)),
    ("sendFromInboxInvalidPublisherBridge", NULL, lambda b: b.gone.send_from_inbox(b.inbox, PAYLOAD)),
    ("sendFromInboxInvalidInbox", NULL, lambda b: b.made.send_from_inbox(None, PAYLOAD)),
    ("sendFromInboxInvalidMsg", NULL, lambda b: b.made.send_from_inbox(b.inbox, None)),
]


@each(("name", "status", "call"), REFUSED)
def test_what_is_invalid_is_refused_and_leaves_nothing(
    bridge: Bridge, name: str, status: Status, call: Callable[[Bridge], object]
) -> None:
    fails(status, call, bridge)
    assert bridge.transport.find_publishers("t.a b") == bridge.transport.find_publishers("t.a.*.b") == []
