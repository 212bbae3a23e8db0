"""OpenMAMA's own publisher tests under their names: 32 that are enabled there and 5 that are not, because no public
bridge reports errors. Ours do. Counters are calls of create / error / success / destroy.

C has out-parameters and pointers that may be NULL; here a result is what a function returns, and a bridge's publisher
that was destroyed stands for a NULL one.
"""

from __future__ import annotations

import pytest
from mama_spark.mama import (
    BridgePublisher,
    Inbox,
    Publisher,
    PublisherCallbacks,
    PublisherState,
    Queue,
    Request,
    Status,
    Transport,
    TransportTopicEvent,
)
from mama_spark.mama.messages.omnm import encode
from mama_spark.testing.waiting import until

from tests.support.mama_harness import CallbackRecorder, MamaHarness, a_message, dispatch, fails

PAYLOAD = encode(a_message())


@pytest.fixture
def transport(stage: MamaHarness) -> Transport:
    return stage.transport()


# --- C: MamaPublisherTestC ---------------------------------------------------------------------------------------


def test_create_destroy(stage: MamaHarness, transport: Transport) -> None:
    publisher = Publisher.create(transport, stage.symbol)
    assert publisher.state.name == "LIVE"
    publisher.destroy()
    assert publisher.state.name == "DESTROYED"
    transport.destroy()


def test_get_transport_impl(stage: MamaHarness, transport: Transport, told: CallbackRecorder) -> None:
    publisher = Publisher.create_with_callbacks(transport, None, stage.symbol, None, None, PublisherCallbacks())
    assert publisher._bridge._transport is publisher._bridge._transport is transport
    publisher.destroy()
    assert told.counters == (0, 0, 0, 0)


@pytest.mark.spec("PE-19", "PE-39")
def test_send(stage: MamaHarness, transport: Transport, told: CallbackRecorder) -> None:
    """Create as before the specification, and publishing works."""
    publisher = Publisher.create(transport, stage.symbol, stage.source)
    publisher.send(a_message(7))
    publisher.destroy()
    assert told.counters == (0, 0, 0, 0)
    until(lambda: [m.payload for m in stage.held()] == [encode(a_message(7))])


@pytest.mark.spec("PE-43")
def test_event_send_with_callbacks(stage: MamaHarness, transport: Transport, told: CallbackRecorder) -> None:
    transport.set_transport_topic_callback(told.on_topic)
    publisher = Publisher.create_with_callbacks(transport, None, stage.symbol, stage.source, None, told.callbacks())
    for i in range(10):
        publisher.send(a_message(i))
    publisher.destroy()
    assert told.counters == (1, 0, 10 if stage.publisher_style else 0, 1)
    assert [m.payload for m in stage.held()] == [encode(a_message(i)) for i in range(10)]


def bad_source(stage: MamaHarness, transport: Transport, told: CallbackRecorder, callbacks: PublisherCallbacks) -> None:
    """Ten sends that return OK and are then denied."""
    stage.deny()
    transport.set_transport_topic_callback(told.on_topic)
    publisher = Publisher.create_with_callbacks(transport, None, stage.symbol, stage.denied, None, callbacks)
    for i in range(10):
        publisher.send(a_message(i))
        assert publisher.state is PublisherState.LIVE
    publisher.destroy()
    if not stage.publisher_style:
        denied = [(event, topic) for event, topic, info in told.topics if "permission" in info]
        assert denied == [(TransportTopicEvent.PUBLISH_ERROR_NOT_ENTITLED, f"denied.{stage.symbol}")] * 10


def test_event_send_with_callbacks_bad_source(stage: MamaHarness, transport: Transport, told: CallbackRecorder) -> None:
    """Disabled upstream."""
    bad_source(stage, transport, told, told.callbacks())
    assert told.counters == (1, 10 if stage.publisher_style else 0, 0, 1)
    errors = [h for h in told.heard if h[0] == "error"]
    assert {(state, status) for _, state, status, _, _ in errors} <= {("LIVE", "NOT_ENTITLED"),
                                                                      ("DESTROYING", "NOT_ENTITLED")}  # fmt: skip


def test_event_send_with_callbacks_no_error_callback(
    stage: MamaHarness, transport: Transport, told: CallbackRecorder
) -> None:
    bad_source(stage, transport, told, told.callbacks("create", "success", "destroy"))
    assert told.counters == (1, 0, 0, 1)


def test_event_send_with_callbacks_no_callbacks(
    stage: MamaHarness, transport: Transport, told: CallbackRecorder
) -> None:
    bad_source(stage, transport, told, PublisherCallbacks())
    assert told.counters == (0, 0, 0, 0)


def test_get_transport(stage: MamaHarness, transport: Transport) -> None:
    assert Publisher.create(transport, stage.symbol).transport is transport


# --- C: middlewarePublisherTests, the bridge called directly ----------------------------------------------------


class Bridge:
    """Three publishers of the bridge's side, one of them destroyed, and what they need."""

    def __init__(self, stage: MamaHarness, transport: Transport) -> None:
        self.parent = Publisher.create(transport, stage.symbol, stage.source)
        self.made = BridgePublisher.create(transport, stage.symbol, stage.source, None, self.parent)
        self.gone = BridgePublisher.create(transport, stage.symbol, stage.source, None, self.parent)
        self.gone.destroy(60)
        self.inbox = Inbox.create(transport, None, lambda msg, closure: None)
        self.request = Request(a_message(), "t.x", "t.reply")


@pytest.fixture
def bridge(stage: MamaHarness, transport: Transport) -> Bridge:
    return Bridge(stage, transport)


def test_bridge_create_destroy(stage: MamaHarness, transport: Transport, bridge: Bridge) -> None:
    """createDestroy."""
    made = BridgePublisher.create(transport, stage.symbol, stage.source, None, bridge.parent)
    assert made.destroy(60)


def test_create_by_index_invalid_result(stage: MamaHarness, transport: Transport, bridge: Bridge) -> None:
    """A create that fails has no result: nothing is left of it."""
    before = transport.find_publishers("t.a b")
    fails(Status.BAD_SYMBOL, BridgePublisher.create_by_index, transport, 0, "a b", "t", None, bridge.parent)
    fails(Status.INVALID_ARG, BridgePublisher.create_by_index, transport, 1, "a", "t", None, bridge.parent)
    assert transport.find_publishers("t.a b") == before == []


def test_create_by_index_invalid_tport(stage: MamaHarness, bridge: Bridge) -> None:
    fails(Status.NULL_ARG, BridgePublisher.create_by_index, None, 0, stage.symbol, None, None, bridge.parent)


def test_create_by_index_invalid_parent(stage: MamaHarness, transport: Transport) -> None:
    fails(Status.NULL_ARG, BridgePublisher.create_by_index, transport, 0, stage.symbol, None, None, None)


def test_create_invalid_result(transport: Transport, bridge: Bridge) -> None:
    fails(Status.BAD_SYMBOL, BridgePublisher.create, transport, "a.*.b", "t", None, bridge.parent)
    assert transport.find_publishers("t.a.*.b") == []


def test_create_invalid_tport(stage: MamaHarness, bridge: Bridge) -> None:
    fails(Status.NULL_ARG, BridgePublisher.create, None, stage.symbol, None, None, bridge.parent)


def test_create_invalid_publisher(stage: MamaHarness, transport: Transport) -> None:
    fails(Status.NULL_ARG, BridgePublisher.create, transport, stage.symbol, None, None, None)


def test_create_by_index_invalid_topic(transport: Transport, bridge: Bridge) -> None:
    """Disabled upstream, as the two that follow: parts that are NULL are legal."""
    assert BridgePublisher.create_by_index(transport, 0, None, "t", "R", bridge.parent).topic == "R.t"


def test_create_by_index_invalid_source(transport: Transport, bridge: Bridge) -> None:
    assert BridgePublisher.create_by_index(transport, 0, "S", None, "R", bridge.parent).topic == "R.S"


def test_create_by_index_invalid_root(transport: Transport, bridge: Bridge) -> None:
    assert BridgePublisher.create_by_index(transport, 0, "S", "t", None, bridge.parent).topic == "t.S"


def test_destroy_invalid(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.gone.destroy, 1.0)


def test_send_invalid_publisher_bridge(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.gone.send, PAYLOAD)


def test_send_invalid_msg(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.made.send, None)


def test_send_reply_to_inbox_invalid_publisher_bridge(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.gone.send_reply_to_inbox, bridge.request, PAYLOAD)


def test_send_reply_to_inbox_invalid_request(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.made.send_reply_to_inbox, None, PAYLOAD)
    fails(Status.INVALID_ARG, bridge.made.send_reply_to_inbox, Request(a_message(), "t.x", None), PAYLOAD)


def test_send_reply_to_inbox_invalid_reply(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.made.send_reply_to_inbox, bridge.request, None)


def test_send_reply_to_inbox_handle_invalid_publisher_bridge(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.gone.send_reply_to_inbox_handle, "t.reply", PAYLOAD)


def test_send_reply_to_inbox_handle_invalid_request(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.made.send_reply_to_inbox_handle, None, PAYLOAD)


def test_send_reply_to_inbox_handle_invalid_reply(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.made.send_reply_to_inbox_handle, "t.reply", None)


def test_send_from_inbox_by_index_invalid_publisher_bridge(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.gone.send_from_inbox_by_index, 0, bridge.inbox, PAYLOAD)


def test_send_from_inbox_by_index_invalid_inbox(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.made.send_from_inbox_by_index, 0, None, PAYLOAD)


def test_send_from_inbox_by_index_invalid_msg(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.made.send_from_inbox_by_index, 0, bridge.inbox, None)
    fails(Status.INVALID_ARG, bridge.made.send_from_inbox_by_index, 1, bridge.inbox, PAYLOAD)


def test_send_from_inbox_invalid_publisher_bridge(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.gone.send_from_inbox, bridge.inbox, PAYLOAD)


def test_send_from_inbox_invalid_inbox(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.made.send_from_inbox, None, PAYLOAD)


def test_send_from_inbox_invalid_msg(bridge: Bridge) -> None:
    fails(Status.NULL_ARG, bridge.made.send_from_inbox, bridge.inbox, None)


# --- C++: MamaPublisherTest --------------------------------------------------------------------------------------


def test_publish(stage: MamaHarness, transport: Transport) -> None:
    publisher = Publisher.create(transport, stage.symbol, stage.source)
    for i in range(10):
        publisher.send(a_message(i))
    publisher.destroy()
    until(lambda: len(stage.held()) == 10)


@pytest.mark.spec("PE-42")
def test_publish_with_callbacks(stage: MamaHarness, transport: Transport, told: CallbackRecorder) -> None:
    """Destroy, wait for on_destroy, no callback after it."""
    queue = Queue("callbacks")
    publisher = Publisher.create_with_callbacks(transport, queue, stage.symbol, stage.source, None, told.callbacks())
    with queue.start():
        for i in range(10):
            publisher.send(a_message(i))
        publisher.destroy_ex()
        until(lambda: told.count("destroy") == 1)
        assert told.heard[-1][:2] == ("destroy", "DESTROYING")
        until(lambda: publisher.state is PublisherState.DESTROYED)
    dispatch(queue)
    assert told.counters == (1, 0, 10 if stage.publisher_style else 0, 1)
    assert told.heard[-1][0] == "destroy"


def test_publish_with_callbacks_bad_source(stage: MamaHarness, transport: Transport, told: CallbackRecorder) -> None:
    """Disabled upstream."""
    stage.deny()
    transport.set_transport_topic_callback(told.on_topic)
    queue = Queue("callbacks")
    publisher = Publisher.create_with_callbacks(transport, queue, stage.symbol, stage.denied, None, told.callbacks())
    for i in range(10):
        publisher.send(a_message(i))
    if stage.publisher_style:
        while told.count("error") < 10:
            queue.timed_dispatch(0.05)
    else:
        until(lambda: len(told.topics) >= 10)
    assert publisher.state is PublisherState.LIVE
    publisher.destroy()
    assert told.counters == (1, 10 if stage.publisher_style else 0, 0, 1)


@pytest.mark.spec("PE-40")
def test_publish_with_null_callback(stage: MamaHarness, transport: Transport) -> None:
    """NULL instead of callbacks; and the source is a bad one."""
    stage.deny()
    publisher = Publisher.create_with_callbacks(transport, None, stage.symbol, stage.denied, None, None)
    for i in range(10):
        publisher.send(a_message(i))
    publisher.destroy()
    assert publisher.get_user_callbacks() is None
