"""Publisher events: which callbacks come, on which thread, and of which publisher."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from mama_spark.bridge import EventStyle
from mama_spark.mama import (
    BridgePublisher,
    Publisher,
    PublisherCallbacks,
    PublisherState,
    Queue,
)
from mama_spark.mama.bridge_loop import PendingSend
from mama_spark.mama.callback_delivery import CallbackDelivery
from mama_spark.mama.messages.omnm import encode
from mama_spark.testing.waiting import until

from tests.support.mama.mama_harness import (
    CallbackRecorder,
    MamaHarness,
    MemoryMamaHarness,
    NatsMamaHarness,
    a_message,
    dispatch,
    published,
)


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
    assert repr(callbacks) == "<PublisherCallbacks on_error>"


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


@pytest.mark.spec("PE-41", "PE-46")
def test_only_supplied_callbacks_come(harness: MamaHarness, recorder: CallbackRecorder) -> None:
    publisher = published(harness, harness.transport(), recorder, "destroy")
    publisher.send(a_message())
    publisher.destroy()
    assert recorder.counters == (0, 0, 0, 1)
    until(lambda: len(harness.held()) == 1)


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
        (success,) = [h for h in recorder.heard if h[0] == "success"]
        assert success[2] == "OK"
        assert str(success[3]).startswith(f"{name} ")


@pytest.mark.spec("PE-20", "PE-21")
def test_without_callbacks_nothing_is_kept_or_made_of_an_answer(
    harness: MamaHarness,
    recorder: CallbackRecorder,
    monkeypatch: pytest.MonkeyPatch,
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
        publisher = Publisher.create(transport, harness.symbol, source)
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
