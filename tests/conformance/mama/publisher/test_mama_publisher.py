"""Publishers of OpenMAMA: topics, callbacks and errors."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from mama_spark.contracts.bridge import EventStyle
from mama_spark.mama import (
    BridgePublisher,
    Publisher,
    PublisherCallbacks,
    PublisherState,
    Queue,
    Status,
    Transport,
    TransportTopicEvent,
)
from mama_spark.mama.bridge_loop import PendingSend
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.queue import CallbackDelivery
from mama_spark.memory import MemoryBridge
from mama_spark.testing.waiting import until

from tests.support.mama.mama_harness import (
    CallbackRecorder,
    MamaHarness,
    MemoryMamaHarness,
    NatsMamaHarness,
    a_message,
    dispatch,
    fails,
    published,
)

# --- publisher events: topics that are bad, empty, or taken by no stream ----------------------------------------------


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
    empty = Publisher.create_with_callbacks(transport, None, None, None, None, recorder.callbacks())
    assert (empty.topic, empty.state) == ("", PublisherState.LIVE), "which is legal, and cannot be sent to"
    fails(Status.BAD_SYMBOL, empty.send, a_message())
    empty.destroy()
    assert recorder.counters == (2, 0, 0, 2)


@pytest.mark.spec("PE-15")
def test_a_topic_that_no_stream_takes_is_told_with_the_middlewares_text(
    nats_with_users: Any, recorder: CallbackRecorder
) -> None:
    on = NatsMamaHarness(*nats_with_users)
    publisher = Publisher.create_with_callbacks(on.transport(), None, on.symbol, "nowhere", None, recorder.callbacks())
    fails(Status.PLATFORM, publisher.send, a_message(), match="no stream takes topic")
    on.close()


# --- publisher events: which callbacks come, on which thread, and of which publisher ----------------------------------


@pytest.mark.spec("PE-06-PE-09", "PE-12-PE-15")
def test_the_callbacks_are_four_by_name_and_unknown_ones_raise() -> None:
    callbacks = PublisherCallbacks()
    callbacks.on_error = lambda publisher, status, info, closure: None
    assert [callbacks.on_create, callbacks.on_destroy, callbacks.on_success] == [None, None, None]
    with pytest.raises(TypeError):
        PublisherCallbacks(on_failure=print)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        PublisherCallbacks(print)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        setattr(callbacks, "on_failure", print)  # noqa: B010
    with pytest.raises(TypeError, match="callable"):
        callbacks.on_create = 7  # type: ignore[assignment]
    callbacks.close()


@pytest.mark.spec("PE-25", "PE-26")
def test_the_callbacks_of_a_publisher_are_a_copy_that_nobody_changes(
    memory: MemoryMamaHarness, recorder: CallbackRecorder
) -> None:
    """Later changes have no effect, and there is no function to set them"""
    callbacks = recorder.callbacks("create")
    transport = memory.transport()
    publisher = Publisher.create_with_callbacks(transport, None, memory.symbol, memory.source, None, callbacks)
    callbacks.on_destroy = callbacks.on_create
    copy = publisher.get_user_callbacks()
    assert copy is not None
    assert (copy.on_create, copy.on_destroy) == (callbacks.on_create, None)
    with pytest.raises(AttributeError, match="after its create"):
        copy.on_destroy = None
    publisher.destroy()
    assert recorder.counters == (1, 0, 0, 0)


@pytest.mark.spec("PE-10-PE-12")
def test_on_create_runs_on_the_callers_thread_before_create_returns(
    harness: MamaHarness, recorder: CallbackRecorder
) -> None:
    """The publisher is LIVE in it; the closure comes back unchanged"""
    queue = Queue()
    publisher = published(harness, harness.transport(), recorder, queue=queue)
    assert recorder.heard == [("create", "LIVE", None, None, threading.current_thread().name)]
    assert recorder.closures == ["mine"]
    publisher.destroy()
    assert recorder.heard[1] == ("destroy", "DESTROYING", None, None, threading.current_thread().name)
    assert publisher.state is PublisherState.DESTROYED
    queue.destroy()


@pytest.mark.spec("PE-10")
def test_answers_come_on_the_queue_if_there_is_one(harness: MamaHarness, recorder: CallbackRecorder) -> None:
    """And on the transport's thread if there is none"""
    if not harness.publisher_style:
        harness = MemoryMamaHarness(EventStyle.PUBLISHER)
    queue, transport = Queue("answers"), harness.transport()
    direct = published(harness, transport, recorder)
    direct.send(a_message())
    until(lambda: recorder.count("success"))
    assert recorder.heard[-1][4].startswith("mama-transport-")
    publisher = published(harness, transport, recorder, queue=queue)
    publisher.send(a_message())
    until(queue.get_event_count)
    assert recorder.count("success") == 1, "nobody dispatches"
    dispatch(queue)
    assert recorder.heard[-1][4] == threading.current_thread().name
    publisher.send(a_message())
    with queue.start():
        until(lambda: recorder.count("success") == 3)
    assert recorder.heard[-1][4] == "mama-queue-answers"
    harness.close()


@pytest.mark.spec("PE-09", "PE-36")
def test_a_success_tells_where_the_message_is_stored(harness: MamaHarness, recorder: CallbackRecorder) -> None:
    """on_success, as released later; off unless set"""
    publisher = published(harness, harness.transport(), recorder)
    publisher.send(a_message())
    publisher.destroy()
    if harness.publisher_style:
        name = "T" if isinstance(harness, NatsMamaHarness) else harness.symbol
        assert recorder.heard[1][::2][:2] == ("success", "OK")
        assert str(recorder.heard[1][3]).startswith(f"{name} ")


@pytest.mark.spec("PE-20", "PE-21", "PE-40")
def test_without_callbacks_nothing_is_kept_or_made_of_an_answer(
    harness: MamaHarness, recorder: CallbackRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the API layer nor the bridge does callback work"""
    transport = harness.transport()
    made: list[object] = []

    def sent(*args: Any) -> PendingSend:
        made.append(args)
        return PendingSend(*args)

    monkeypatch.setattr("mama_spark.mama.bridge_loop.PendingSend", sent)
    monkeypatch.setattr(CallbackDelivery, "add", lambda *args: made.append(args))
    harness.deny()
    for source in (harness.source, harness.denied):
        if source == harness.source:
            publisher = Publisher.create(transport, harness.symbol, source)
        else:
            publisher = Publisher.create_with_callbacks(transport, None, harness.symbol, source, None, None)
        assert publisher.get_user_callbacks() is None
        for i in range(5):
            publisher.send(a_message(i))
        assert transport.loop.tracked == 0
        publisher.destroy()
    until(lambda: len(harness.held()) == 5)
    assert made == []
    monkeypatch.undo()
    transport.set_transport_topic_callback(recorder.on_topic)
    assert transport.loop.tracked == 0


@pytest.mark.spec("PE-44-PE-47")
def test_the_bridge_makes_the_callbacks_that_it_was_given_after_create(
    harness: MamaHarness, recorder: CallbackRecorder
) -> None:
    """Every bridge has the hook, because it is ours and not the bridge's"""
    transport = harness.transport()
    parent = Publisher.create(transport, harness.symbol, harness.source)
    made = BridgePublisher.create(transport, harness.symbol, harness.source, None, parent)
    made.send(encode(a_message()))  # before there are callbacks: nobody is told
    made.set_user_callbacks(None, recorder.callbacks("success"), "mine")
    made.send(encode(a_message()))
    assert made.destroy(60)
    assert recorder.counters == (0, 0, 1 if harness.publisher_style else 0, 0), (
        "on_create is never the bridge's to call"
    )
    assert set(recorder.closures) <= {"mine"}


@pytest.mark.spec("PE-04", "PE-29")
def test_callbacks_are_of_one_publisher_although_others_share_its_topic(harness: MamaHarness) -> None:
    transport, ears = harness.transport(), [CallbackRecorder(), CallbackRecorder()]
    publishers = [published(harness, transport, ear) for ear in ears]
    assert set(transport.find_publishers(harness.topic)) == set(publishers)
    for n, publisher in enumerate(publishers):
        for i in range(n + 2):
            publisher.send(a_message(i))
    for publisher in publishers:
        publisher.destroy()
    assert [ear.count("success") for ear in ears] == ([2, 3] if harness.publisher_style else [0, 0])


# --- publisher events: errors that come later, and answers that count for nothing -------------------------------------


@pytest.mark.spec("PE-01-PE-03", "PE-05", "PE-14", "PE-16", "PE-17", "PE-30")
def test_a_denied_topic_is_not_entitled_and_names_it(harness: MamaHarness, recorder: CallbackRecorder) -> None:
    """By exactly one of the two ways"""
    harness.deny()
    transport = harness.transport()
    transport.set_transport_topic_callback(recorder.on_topic, "closure")
    publisher = Publisher.create_with_callbacks(transport, None, harness.symbol, "denied", None, recorder.callbacks())
    publisher.send(a_message())
    topic = f"denied.{harness.symbol}"
    if harness.publisher_style:
        until(lambda: recorder.count("error"))
        assert recorder.heard[1][:3] == ("error", "LIVE", "NOT_ENTITLED")
        assert topic in str(recorder.heard[1][3]) or topic.lower() in str(recorder.heard[1][3])
        assert recorder.topics == []
    else:
        until(lambda: len(recorder.topics) == 2)
        created, denied = recorder.topics
        assert created == (TransportTopicEvent.PUBLISH_CREATE, topic, "")
        assert denied[:2] == (TransportTopicEvent.PUBLISH_ERROR_NOT_ENTITLED, topic)
        assert "no permission" in denied[2]
        assert transport.find_publishers(denied[1]) == [publisher], "PE-03: the publisher is found by its topic"
        publisher.destroy()
        assert recorder.topics[2:] == [(TransportTopicEvent.PUBLISH_DESTROY, topic, "")]
        assert transport.find_publishers(topic) == []
        assert recorder.count("error") == 0
    assert transport.callback_errors == 0


@pytest.mark.spec("PE-15", "PE-17")
@pytest.mark.parametrize("style", list(EventStyle))
@pytest.mark.parametrize(
    ("fault", "status", "info"),
    [
        ("reject", "PLATFORM", "400: refused by the script"), ("503", "PLATFORM", "503: no responders"),
        ("disconnect", "TIMEOUT", "the script cut the connection"), ("drop", "TIMEOUT", "no answer within 0.2 s"),
    ],
)  # fmt: skip
def test_every_other_error_is_publish_error_with_the_middlewares_code_and_text(
    style: EventStyle, recorder: CallbackRecorder, fault: str, status: str, info: str
) -> None:
    on = MemoryMamaHarness(style)
    transport = on.transport(answer_timeout=0.2)
    transport.set_transport_topic_callback(recorder.on_topic)
    publisher = published(on, transport, recorder)
    on.broker.then([fault])
    publisher.send(a_message())
    if style is EventStyle.PUBLISHER:
        until(lambda: recorder.count("error"))
        assert recorder.heard[1][:4] == ("error", "LIVE", status, info)
    else:
        until(lambda: len(recorder.topics) == 2)
        assert (recorder.topics[1][0].name, recorder.topics[1][2]) == ("PUBLISH_ERROR", info)
    on.close()


def test_a_late_answer_is_no_second_callback(memory: MemoryMamaHarness, recorder: CallbackRecorder) -> None:
    transport = memory.transport(answer_timeout=0.1)
    publisher = published(memory, transport, recorder)
    memory.broker.then(["late", "dup", "unknown"])
    for i in range(3):
        publisher.send(a_message(i))
    until(lambda: recorder.count("error"))
    memory.broker.release()
    publisher.send(a_message())
    until(lambda: recorder.count("success") == 3)
    assert recorder.counters[1] == 1


def test_answers_from_before_an_outage_do_not_count_for_what_is_sent_after_it(
    memory: MemoryMamaHarness, recorder: CallbackRecorder
) -> None:
    """A transport that is destroyed waits for what plain publishers sent: also when old answers came late"""
    transport = memory.transport()
    plain = Publisher.create(transport, memory.symbol, memory.source)
    memory.broker.then(["late", "disconnect"])
    plain.send(a_message())
    plain.send(a_message())
    until(lambda: transport.loop._outstanding_from == 2)
    assert memory.broker.release() == 1
    memory.broker.then(["late"])
    plain.send(a_message())
    assert transport.loop._outstanding_acks == 1
    memory.broker.release()
    until(lambda: transport.loop._outstanding_acks == 0)


def test_a_message_without_acknowledgements_is_neither_success_nor_error(
    memory: MemoryMamaHarness, recorder: CallbackRecorder
) -> None:
    queue = Queue(max_events=5000)
    transport = Transport.create("pub", MemoryBridge(memory.symbol, acks=False), answer_timeout=0.05)
    publisher = published(memory, transport, recorder, queue=queue)
    for i in range(10):
        publisher.send(a_message(i))
    until(lambda: transport.loop.tracked == 0)
    publisher.destroy()
    transport.destroy()
    assert recorder.counters == (1, 0, 0, 1)
    assert queue._reserved == 0
