"""The end of publishers: destroyed while answers are due, from callbacks, by other threads, with their transport."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from mama_spark.mama import Publisher, PublisherState, Queue, Status, StatusError
from mama_spark.mama.messages.omnm import encode
from mama_spark.memory import MemoryBridge
from mama_spark.testing.waiting import until

from tests.support.mama.mama_harness import (
    CallbackRecorder,
    MamaHarness,
    MemoryMamaHarness,
    a_message,
    dispatch,
    dispatched,
    fails,
    published,
)

# --- destroying --------------------------------------------------------------------------------------------------


@pytest.mark.spec("PE-13", "PE-42")
def test_destroy_waits_for_the_answers_and_nothing_comes_after_it(
    harness: MamaHarness, recorder: CallbackRecorder
) -> None:
    queue = Queue()
    publisher = published(harness, harness.transport(), recorder, queue=queue)
    for i in range(50):
        publisher.send(a_message(i))
    publisher.destroy()
    expected = (1, 0, 50 if harness.publisher_style else 0, 1)
    assert recorder.counters == expected
    assert recorder.heard[-1][0] == "destroy"
    publisher.destroy()
    queue.dispatch(0.02)
    assert recorder.counters == expected, "destroy may be repeated, and is done once"
    queue.destroy()


@pytest.mark.spec("PE-34", "PE-53", "PE-55")
def test_a_publisher_whose_answers_do_not_come_is_destroyed_at_the_deadline(
    memory: MemoryMamaHarness, recorder: CallbackRecorder
) -> None:
    """It waits for the bridge as DESTROYING_WAIT_BRIDGE, and is DESTROYED when the bridge is done"""
    transport = memory.transport(destroy_timeout=0.1, answer_timeout=60)
    publisher = published(memory, transport, recorder)
    memory.broker.then(["late"])
    publisher.send(a_message())
    publisher.destroy()
    assert recorder.heard[-1][:2] == ("destroy", "DESTROYING")
    assert publisher.state.name == "DESTROYING_WAIT_BRIDGE"
    memory.broker.release()
    until(lambda: publisher.state.name == "DESTROYED")
    assert recorder.counters == (1, 0, 0, 1), "the answer came too late"


@pytest.mark.parametrize("queued", [True, False])
def test_a_callback_that_hangs_does_not_keep_destroy(
    memory: MemoryMamaHarness, recorder: CallbackRecorder, queued: bool
) -> None:
    go, inside = threading.Event(), threading.Event()
    callbacks = recorder.callbacks("destroy")

    def hang(*_: Any) -> None:
        inside.set()
        go.wait(60)

    callbacks.on_success = hang
    transport = memory.transport(destroy_timeout=0.1)
    with dispatched(queued) as queue:
        publisher = Publisher.create_with_callbacks(transport, queue, memory.symbol, memory.source, None, callbacks)
        publisher.send(a_message())
        assert inside.wait(60)
        publisher.destroy()
        assert [h[:2] for h in recorder.heard] == [("destroy", "DESTROYING")]
        go.set()
        until(lambda: publisher.state.name == "DESTROYED")


def test_a_transport_destroys_the_publishers_that_live_on_it(harness: MamaHarness, recorder: CallbackRecorder) -> None:
    transport = harness.transport()
    publishers = [published(harness, transport, recorder) for _ in range(3)]
    publishers[0].send(a_message())
    transport.destroy()
    assert {p.state for p in publishers} == {PublisherState.DESTROYED}
    assert recorder.counters == (3, 0, 1 if harness.publisher_style else 0, 3)
    fails(Status.NULL_ARG, publishers[0].send, a_message())
    fails(Status.INVALID_ARG, Publisher.create, transport, harness.symbol)
    transport.destroy()


def test_destroy_ex_returns_at_once_and_destroys_on_the_queue(
    memory: MemoryMamaHarness, recorder: CallbackRecorder
) -> None:
    queue = Queue("ex")
    publisher = published(memory, memory.transport(), recorder, queue=queue)
    publisher.send(a_message())
    publisher.destroy_ex()
    assert publisher.state.name == "LIVE"
    with queue.start():
        until(lambda: publisher.state.name == "DESTROYED")
    assert [(h[0], h[4]) for h in recorder.heard[1:]] == [("success", "mama-queue-ex"), ("destroy", "mama-queue-ex")]
    inline = published(memory, memory.transport(), recorder)
    inline.destroy_ex()
    assert inline.state is PublisherState.DESTROYED


def test_a_queue_is_not_destroyed_before_the_publishers_that_use_it(
    memory: MemoryMamaHarness, recorder: CallbackRecorder
) -> None:
    queue = Queue()
    publisher = published(memory, memory.transport(), recorder, queue=queue)
    fails(Status.QUEUE_OPEN_OBJECTS, queue.destroy)
    publisher.destroy()
    queue.destroy()
    with pytest.raises(StatusError, match="QUEUE_END"):
        published(memory, memory.transport(), recorder, queue=queue)
    assert recorder.count("create") == 1


@pytest.mark.spec("PE-19", "PE-39")
def test_what_plain_publishers_sent_is_stored_when_the_transport_is_destroyed(harness: MamaHarness) -> None:
    """A process may end next"""
    with harness.transport() as transport:
        publisher = Publisher.create(transport, harness.symbol, harness.source)
        for i in range(100):
            publisher.send(a_message(i))
    assert [m.payload for m in harness.held()] == [encode(a_message(i)) for i in range(100)]


# --- threads and races -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["queue", "transport's thread"])
@pytest.mark.parametrize("when", ["success", "error", "create"])
def test_a_callback_may_destroy_its_own_publisher(
    memory: MemoryMamaHarness, recorder: CallbackRecorder, where: str, when: str
) -> None:
    queue = Queue() if where == "queue" else None
    callbacks = recorder.callbacks()
    inner = getattr(callbacks, f"on_{when}")

    def destroying(publisher: Publisher, *args: Any) -> None:
        inner(publisher, *args)
        publisher.destroy()

    setattr(callbacks, f"on_{when}", destroying)
    memory.broker.then(["reject"] * 20 if when == "error" else [])
    publisher = Publisher.create_with_callbacks(
        memory.transport(), queue, memory.symbol, memory.source, None, callbacks
    )
    memory_sends(publisher, 20)

    def destroyed() -> bool:
        if queue is not None:
            dispatch(queue)
        return publisher.state is PublisherState.DESTROYED

    until(destroyed)
    if queue is not None:
        queue.dispatch(0.01)
        queue.destroy()
    assert recorder.count(when) == recorder.count("destroy") == 1, "what was still due is not told"
    assert recorder.heard[-1][:2] == ("destroy", "DESTROYING")


def memory_sends(publisher: Publisher, n: int) -> None:
    for i in range(n):
        try:
            publisher.send(a_message(i))
        except StatusError:  # destroyed: the only one that there is here
            return


@pytest.mark.parametrize("name", ["create", "success", "destroy"])
@pytest.mark.parametrize("queued", [True, False])
def test_callbacks_may_send_by_their_own_and_by_other_publishers(
    harness: MamaHarness, recorder: CallbackRecorder, name: str, queued: bool
) -> None:
    """No callback keeps the transport's thread, which its own sends need, from going on."""
    transport = harness.transport()
    other = published(harness, transport, CallbackRecorder())
    callbacks, sent = recorder.callbacks(), list[int]()
    inner = getattr(callbacks, f"on_{name}")

    def sending(publisher: Publisher, *args: Any) -> None:
        inner(publisher, *args)
        for by in (other, other, *([publisher] * 5 if name == "create" else [])):
            by.send(a_message())
            sent.append(1)

    setattr(callbacks, f"on_{name}", sending)
    with dispatched(queued) as queue:
        publisher = Publisher.create_with_callbacks(transport, queue, harness.symbol, harness.source, None, callbacks)
        publisher.send(a_message())
        publisher.destroy()
    n = len(sent)
    assert n == {"create": 7, "success": 2 if harness.publisher_style else 0, "destroy": 2}[name]
    assert recorder.count("success") == (0 if not harness.publisher_style else 6 if name == "create" else 1)
    assert recorder.heard[-1][0] == "destroy"
    other.destroy()
    assert len(harness.held()) == n + 1


@pytest.mark.parametrize("name", ["create", "error", "success", "destroy"])
def test_a_raising_callback_is_counted_and_harms_nobody(
    memory: MemoryMamaHarness, recorder: CallbackRecorder, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def raising(*args: Any) -> None:
        raise RuntimeError(f"on_{name} raises")

    callbacks = recorder.callbacks()
    setattr(callbacks, f"on_{name}", raising)
    memory.broker.then(["reject", "ack"])
    transport = memory.transport()
    publisher = Publisher.create_with_callbacks(transport, None, memory.symbol, memory.source, None, callbacks)
    for i in range(2):
        publisher.send(a_message(i))
    publisher.destroy()
    assert publisher.state is PublisherState.DESTROYED
    assert publisher.callback_errors == 1
    assert f"on_{name} raises" in caplog.text
    assert sum(recorder.counters) == 3


@pytest.mark.spec("PE-42")
@pytest.mark.parametrize("queued", [True, False])
def test_destroy_while_sends_are_answered(harness: MamaHarness, recorder: CallbackRecorder, queued: bool) -> None:
    """Whoever sends, answers and destroys at the same time, on_destroy comes once and last"""
    transport = harness.transport()
    with dispatched(queued) as queue, ThreadPoolExecutor(4) as pool:
        for _ in range(8):
            recorder.heard.clear()
            publisher = published(harness, transport, recorder, queue=queue)
            tasks = [pool.submit(memory_sends, publisher, 40) for _ in range(2)]
            tasks += [pool.submit(publisher.destroy) for _ in range(2)]
            assert [one.exception(60) for one in tasks] == [None] * 4
            until(lambda p=publisher: p.state is PublisherState.DESTROYED)  # type: ignore[misc]
            assert recorder.count("destroy") == 1
            assert recorder.heard[-1][0] == "destroy"
            assert recorder.heard[0][0] == "create"
    if queue is not None:
        queue.destroy()
        assert queue._reserved == 0, "no place is lost"


def test_a_bridge_that_dies_fails_the_calls_and_lets_publishers_be_destroyed(
    memory: MemoryMamaHarness,
    recorder: CallbackRecorder,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = memory.transport()
    publisher = published(memory, transport, recorder)
    memory.broker.then(["late"])
    publisher.send(a_message())

    def broken(*args: Any, **more: Any) -> None:
        raise RuntimeError("the bridge broke")

    monkeypatch.setattr(MemoryBridge, "poll", broken)
    until(lambda: recorder.count("error"))
    fails(Status.PLATFORM, publisher.send, a_message(), match="the bridge broke")
    publisher.destroy()
    assert recorder.counters == (1, 1, 0, 1)
    assert publisher.state is PublisherState.DESTROYED
    assert "the bridge broke" in caplog.text
